//! The `rocexdp` command. Everything is in the library; see `rocexdp::cli`.

use std::process::ExitCode;

fn main() -> ExitCode {
    rocexdp::cli::main()
}
