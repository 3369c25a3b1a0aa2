"""uvicorn's HTTP protocol, with one difference: what is no HTTP at all is answered in the API's own error form too."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from server.errors import RequestError, error_json


class JsonErrorsProtocol(HttpToolsProtocol):
    def send_400_response(self, msg: str) -> None:
        """Reaches no app: the parser gave up, so that there is neither a method nor a path."""
        body = error_json(RequestError("invalid_value", msg))
        head = f"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"Connection: close\r\n\r\n" + body)
        self.transport.close()
