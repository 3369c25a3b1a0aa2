from argparse import ArgumentParser


class FlexibleArgumentParser(ArgumentParser):
    pass
