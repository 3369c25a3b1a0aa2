"""`dots3 chat`: a conversation in the terminal, streamed, with the model's thinking dimmed."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from cli.chat_client import ChatClient

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_HELP = (
    "/attach FILE or LINK adds a picture, sound or film to your next message, /new begins a new conversation, "
    "/think turns thinking on or off, /quit leaves; Ctrl-C stops an answer"
)


@app.command()
def chat(
    url: Annotated[str, typer.Argument(help="of the server")] = "http://127.0.0.1:8000",
    model: Annotated[str | None, typer.Option(help="one of its models; without it, the first")] = None,
    system: Annotated[str | None, typer.Option(help="system message of every conversation")] = None,
    thinking: Annotated[bool, typer.Option(help="let the model think before it answers")] = True,
    api_key: Annotated[str | None, typer.Option(help="of the server")] = None,
) -> None:
    """Chat with a running server."""
    from cli.chat_client import ChatClient, ChatError

    console = Console(highlight=False)
    with closing(ChatClient(url, api_key)) as client:
        try:
            name = model or client.first_model()
        except ChatError as error:
            typer.echo(f"dots3 chat: {error}", err=True)
            raise typer.Exit(1) from error
        console.print(f"{name} at {url}. {_HELP}.", style="dim")
        _Talk(client, name, system, thinking, console).run()


class _Talk:
    def __init__(self, client: ChatClient, model: str, system: str | None, thinking: bool, console: Console) -> None:
        self._client = client
        self._model = model
        self._opening = [] if system is None else [{"role": "system", "content": system}]
        self._messages: list[dict[str, Any]] = list(self._opening)
        self._attached: list[dict[str, Any]] = []  # to the next message
        self._thinking = thinking
        self._console = console

    def run(self) -> None:
        while True:
            try:
                said = self._console.input("[bold]> ").strip()
            except (EOFError, KeyboardInterrupt):
                return
            if said == "/quit":
                return
            if said:
                self._take(said)

    def _take(self, said: str) -> None:
        if said == "/new":
            self._messages = list(self._opening)
            self._attached.clear()
        elif said.split()[0] == "/attach":
            self._attach(said.removeprefix("/attach").strip())
        elif said == "/think":
            self._thinking = not self._thinking
            self._console.print(f"thinking is {'on' if self._thinking else 'off'}", style="dim")
        elif said.startswith("/"):
            self._console.print(_HELP, style="dim")
        else:
            self._ask(said)

    def _attach(self, name: str) -> None:
        from cli.chat_attachments import AttachmentError, attachment

        try:
            self._attached.append(attachment(name))
        except AttachmentError as error:
            self._console.print(str(error), style="red", markup=False)
        else:
            self._console.print(f"attached to your next message: {len(self._attached)}", style="dim")

    def _ask(self, said: str) -> None:
        """What was stopped or broke off is taken out of the conversation again."""
        from cli.chat_client import ChatError

        content: str | list[dict[str, Any]] = said
        if self._attached:
            content = [*self._attached, {"type": "text", "text": said}]
        asked = [*self._messages, {"role": "user", "content": content}]
        try:
            answer = self._show_answer(asked)
        except ChatError as error:
            self._console.print(str(error), style="red", markup=False)
        except KeyboardInterrupt:
            self._console.print("\nstopped", style="dim")
        else:
            self._messages = [*asked, {"role": "assistant", "content": answer}]
            self._attached.clear()

    def _show_answer(self, messages: list[dict[str, Any]]) -> str:
        content = reasoning = ""
        with closing(self._client.answer(self._model, messages, self._thinking)) as pieces:
            for piece in pieces:
                if piece.warning:
                    self._write(f"{piece.warning}\n", "yellow")
                if piece.reasoning:
                    self._write(piece.reasoning, "dim italic")
                if piece.content and reasoning and not content:
                    self._write("\n\n", "")
                if piece.content:
                    self._write(piece.content, "")
                if piece.finish_reason == "length":
                    self._write(" …", "dim")
                reasoning += piece.reasoning
                content += piece.content
        self._console.print()
        return content

    def _write(self, text: str, style: str) -> None:
        self._console.print(text, style=style, end="", markup=False, soft_wrap=True)
