//! Output of commands, and progress bars on the terminal.

use std::io::Write;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use indicatif::{ProgressBar, ProgressStyle};

/// Prints to standard output; a closed pipe is no error.
pub fn print(text: &str) {
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

/// Formats a table of text. Columns whose header ends in `>` are aligned to the right.
pub fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
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
pub fn progress(total: u64, unit: ProgressUnit) -> ProgressBar {
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
pub enum ProgressUnit {
    Bytes,
    Rows,
}

/// Formats 1234567 as `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats bytes in the largest unit with a value of at least 1.
pub fn bytes(number: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = number as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{number} B") } else { format!("{value:.1} {}", units[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0, 1023, 1536, 5 << 30].map(bytes), ["0 B", "1023 B", "1.5 KiB", "5.0 GiB"]);
    }
}
