"""TensorBoard as its command starts it, on loopback: python tensorboard_server.py LOGDIR.

Prints the address, then serves until its standard input closes.
"""

import sys
import warnings


def main(logdir: str) -> None:
    from tensorboard import default, program
    from tensorboard.util import tb_logging

    tb_logging.get_logger().setLevel("ERROR")
    board = program.TensorBoard(plugins=default.get_plugins())
    board.configure(argv=["", "--logdir", logdir, "--host", "127.0.0.1", "--port", "0",
                          "--load_fast", "false", "--reload_interval", "2"])  # fmt: skip
    print(board.launch(), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*sys.argv[1:])
