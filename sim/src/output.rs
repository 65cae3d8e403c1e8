//! Lines on standard output. A reader such as `head` may close the pipe early; then the program ends without a report.

use std::fmt::Arguments;
use std::io::Write;

/// Exit code of a program whose output has no reader any more, as shells report SIGPIPE.
const BROKEN_PIPE: i32 = 128 + 13;

/// Prints a line like `println!`, but ends the program if its output has no reader.
macro_rules! outln {
    ($($text:tt)*) => { $crate::output::print_line(format_args!($($text)*)) };
}
pub(crate) use outln;

/// Prints a line; see `outln!`.
pub fn print_line(line: Arguments<'_>) {
    if let Err(error) = write_line(&mut std::io::stdout().lock(), line) {
        if error.kind() != std::io::ErrorKind::BrokenPipe {
            eprintln!("sim: standard output: writing failed ({error})");
        }
        std::process::exit(BROKEN_PIPE);
    }
}

fn write_line(out: &mut impl Write, line: Arguments<'_>) -> std::io::Result<()> {
    out.write_fmt(line)?;
    out.write_all(b"\n")?;
    out.flush()
}
