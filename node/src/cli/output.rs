//! Output of commands, and progress bars on the terminal.

use std::io::Write;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use indicatif::{ProgressBar, ProgressStyle};

/// Prints to standard output; a closed pipe is no error.
pub(super) fn print(text: &str) {
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
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
