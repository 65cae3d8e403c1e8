//! Output of commands, and progress bars on the terminal.

use std::io::{self, Write};
use std::sync::OnceLock;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use engine::error::{Error, Result};
use indicatif::{ProgressBar, ProgressStyle};

use super::exit::ExitError;

/// First failure of [`print`].
static PRINT_FAILURE: OnceLock<Error> = OnceLock::new();

/// Prints to standard output. A failure, also a closed pipe, does not stop the command: [`printed`] returns it at its
/// end.
pub(super) fn print(text: &str) {
    print_to(&mut io::stdout().lock(), text, &PRINT_FAILURE);
}

fn print_to(out: &mut impl Write, text: &str, failure: &OnceLock<Error>) {
    // Without the flush, text that a full disk refuses would be dropped at the end of the program.
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The first failure stays: it has the cause.
        let _ = failure.set(Error::io("write standard output", &error));
    }
}

/// Returns the result of a command; that of one that succeeded is an error if its output could not be printed.
pub(super) fn printed(done: Result<(), ExitError>) -> Result<(), ExitError> {
    done.and_then(|()| PRINT_FAILURE.get().map_or(Ok(()), |error| Err(ExitError::from(error.clone()))))
}

/// Writes rows to standard output. Returns false if its reader has closed it, which ends the output and is no error: it
/// has read as many rows as it wanted.
pub(super) fn write_rows(rows: &[u8]) -> Result<bool> {
    write_to(&mut io::stdout().lock(), rows)
}

fn write_to(out: &mut impl Write, rows: &[u8]) -> Result<bool> {
    // Without the flush, rows that a full disk refuses would be dropped at the end of the program.
    match out.write_all(rows).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Error::io("write standard output", &error)),
    }
}

/// Formats a table of text. Columns whose header ends in `>` are aligned to the right.
pub(super) fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(header.iter().map(|name| name.trim_end_matches('>')));
    for row in rows {
        table.add_row(row);
    }
    for (at, name) in header.iter().enumerate() {
        if let Some(column) = table.column_mut(at).filter(|_| name.ends_with('>')) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_string()).collect();
    lines.join("\n") + "\n"
}

/// Returns a bar that counts up to `total` bytes or rows; hidden unless standard error is a terminal.
pub(super) fn progress(total: u64, unit: ProgressUnit) -> ProgressBar {
    let bar = ProgressBar::new(total);
    let template = match unit {
        ProgressUnit::Bytes => "{bar:30} {bytes}/{total_bytes} {msg} {eta}",
        ProgressUnit::Rows => "{bar:30} {human_pos}/{human_len} rows {msg} {eta}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProgressUnit {
    Bytes,
    Rows,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output whose flush fails.
    struct Failing(io::ErrorKind);

    impl Write for Failing {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(self.0.into())
        }
    }

    #[test]
    fn the_first_failure_to_print_is_kept() {
        let failure = OnceLock::new();
        let mut written = Vec::new();
        print_to(&mut written, "done\n", &failure);
        assert_eq!((written.as_slice(), failure.get()), (&b"done\n"[..], None));
        for kind in [io::ErrorKind::BrokenPipe, io::ErrorKind::StorageFull] {
            print_to(&mut Failing(kind), "done\n", &failure);
        }
        let first = Error::io("write standard output", &io::ErrorKind::BrokenPipe.into());
        assert_eq!(failure.get(), Some(&first));
    }

    #[test]
    fn only_a_closed_pipe_ends_the_output_without_an_error() {
        let mut written = Vec::new();
        assert!(write_to(&mut written, b"1,a\n").expect("memory"));
        assert_eq!(written, b"1,a\n");
        assert!(!write_to(&mut Failing(io::ErrorKind::BrokenPipe), b"1").expect("the reader has enough"));
        let error = write_to(&mut Failing(io::ErrorKind::StorageFull), b"1").expect_err("the disk is full");
        assert!(error.message.starts_with("write standard output"), "{error}");
    }
}
