//! Answers as CSV files: names of columns, then rows.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::csv::WriterBuilder;
use tpchgen::q_and_a::answers_sf1::answer;

use super::command::CommandResult;

const QUERIES: i32 = 22;

/// Writes the rows of an answer.
pub(crate) fn write(path: &Path, batches: &[RecordBatch]) -> CommandResult<()> {
    let mut writer = WriterBuilder::new().build(File::create(path)?);
    for batch in batches {
        writer.write(batch)?;
    }
    Ok(())
}

/// Writes the published answers of scale 1 into `dir`.
pub(crate) fn write_published(dir: &Path) -> CommandResult<()> {
    fs::create_dir_all(dir)?;
    for number in 1..=QUERIES {
        let table = answer(number).ok_or("there are 22 answers")?;
        let mut file = File::create(dir.join(format!("q{number:02}.csv")))?;
        for line in table.lines().filter(|line| !line.trim().is_empty()) {
            writeln!(file, "{}", csv_line(line))?;
        }
    }
    Ok(())
}

/// Returns a line of cells between bars as CSV, all cells in quotes.
fn csv_line(line: &str) -> String {
    let quoted = |cell: &str| format!("\"{}\"", cell.trim().replace('"', "\"\""));
    line.split('|').map(quoted).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_cells_are_trimmed_and_quoted() {
        assert_eq!(csv_line("A  |  1.00|x, \"y\" "), r#""A","1.00","x, ""y""""#);
    }
}
