//! Records of a CSV stream, with the knowledge of which cells were quoted.
//!
//! An empty cell means NULL and a quoted empty cell means the empty string, so quotes must not be lost. `csv_core`
//! parses; this code looks at the first byte of each cell.

use std::io::{self, Read};

use csv_core::ReadFieldResult;
use engine::error::{Error, Result};

/// Largest record. A longer one is most likely a quote that is never closed.
const RECORD_BYTES_MAX: usize = 64 << 20;
/// Bytes read at once.
const BUFFER_BYTES: usize = 1 << 20;
/// Bytes that some programs write before UTF-8 text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Reader of records.
pub struct CsvRecords<R> {
    source: R,
    core: csv_core::Reader,
    buffer: Vec<u8>,
    /// Bytes of `buffer` that were parsed, and that were read.
    at: usize,
    end: usize,
    at_start: bool,
    finished: bool,
    /// Line of the next byte, from 1.
    line: u64,
}

/// One record: its cells without quotes.
#[derive(Debug, Default)]
pub struct CsvRecord {
    bytes: Vec<u8>,
    /// Bytes of `bytes` in use.
    len: usize,
    /// End of each cell, and whether it was quoted.
    cells: Vec<(usize, bool)>,
    /// Line of the first byte.
    pub line: u64,
}

impl CsvRecord {
    /// Returns the number of cells.
    pub fn width(&self) -> usize {
        self.cells.len()
    }

    /// Returns the cells with whether they were quoted.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], bool)> {
        let starts = std::iter::once(0).chain(self.cells.iter().map(|(end, _)| *end));
        starts.zip(&self.cells).map(|(start, (end, quoted))| (&self.bytes[start..*end], *quoted))
    }

    fn clear(&mut self, line: u64) {
        self.len = 0;
        self.cells.clear();
        self.line = line;
    }

    /// Returns space for at least one more byte.
    fn space(&mut self) -> &mut [u8] {
        if self.len == self.bytes.len() {
            self.bytes.resize((self.len * 2).max(256), 0);
        }
        &mut self.bytes[self.len..]
    }
}

impl<R: Read> CsvRecords<R> {
    pub fn new(source: R, delimiter: u8) -> CsvRecords<R> {
        let core = csv_core::ReaderBuilder::new().delimiter(delimiter).build();
        let buffer = vec![0; BUFFER_BYTES];
        CsvRecords { source, core, buffer, at: 0, end: 0, at_start: true, finished: false, line: 1 }
    }

    /// Reads the next record; false at the end. Empty lines are no records.
    pub fn read(&mut self, record: &mut CsvRecord) -> Result<bool> {
        let failed = |error: io::Error| Error::io("read CSV", &error);
        self.skip_line_ends().map_err(failed)?;
        record.clear(self.line);
        loop {
            let quoted = self.peek().map_err(failed)? == Some(b'"');
            match self.read_cell(record, quoted)? {
                ReadFieldResult::End => return Ok(false),
                ReadFieldResult::Field { record_end } => {
                    record.cells.push((record.len, quoted));
                    if record_end {
                        return Ok(true);
                    }
                }
                ReadFieldResult::InputEmpty | ReadFieldResult::OutputFull => {
                    unreachable!("read_cell goes on")
                }
            }
        }
    }

    /// Reads one cell to its end.
    fn read_cell(&mut self, record: &mut CsvRecord, quoted: bool) -> Result<ReadFieldResult> {
        let mut quotes = 0;
        loop {
            let at_end = self.peek().map_err(|error| Error::io("read CSV", &error))?.is_none();
            let input = &self.buffer[self.at..self.end];
            let (result, read, written) = self.core.read_field(input, record.space());
            if quoted {
                quotes += input[..read].iter().filter(|byte| **byte == b'"').count();
            }
            self.line += input[..read].iter().filter(|byte| **byte == b'\n').count() as u64;
            self.at += read;
            record.len += written;
            if record.len > RECORD_BYTES_MAX || (at_end && quotes % 2 == 1) {
                return Err(Error::invalid(format!("line {}: a quote is not closed; add it", record.line)));
            }
            if !matches!(result, ReadFieldResult::InputEmpty | ReadFieldResult::OutputFull) {
                return Ok(result);
            }
        }
    }

    /// Skips the end of the line before, and empty lines.
    fn skip_line_ends(&mut self) -> io::Result<()> {
        while let Some(byte @ (b'\r' | b'\n')) = self.peek()? {
            self.line += u64::from(byte == b'\n');
            self.at += 1;
        }
        Ok(())
    }

    /// Returns the next byte without parsing it; `None` at the end.
    fn peek(&mut self) -> io::Result<Option<u8>> {
        if self.at == self.end && !self.finished {
            self.fill()?;
        }
        Ok(self.buffer[self.at..self.end].first().copied())
    }

    /// Reads more bytes, at the start enough to recognise a byte order mark, which is skipped.
    fn fill(&mut self) -> io::Result<()> {
        (self.at, self.end) = (0, 0);
        while self.end < BYTE_ORDER_MARK.len() {
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) => {
                    self.finished = true;
                    break;
                }
                Ok(read) => self.end += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if std::mem::take(&mut self.at_start) && self.buffer[..self.end].starts_with(BYTE_ORDER_MARK) {
            self.at = BYTE_ORDER_MARK.len();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reader that returns one byte at a time.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let len = out.len().min(1);
            self.0.read(&mut out[..len])
        }
    }

    fn shown(source: impl Read) -> String {
        let (mut records, mut record) = (CsvRecords::new(source, b','), CsvRecord::default());
        let mut text = String::new();
        loop {
            match records.read(&mut record) {
                Ok(false) => return text,
                Ok(true) => {
                    let cell = |(cell, quoted): (&[u8], bool)| {
                        let cell = String::from_utf8_lossy(cell).replace('\n', "|");
                        if quoted { format!("'{cell}'") } else { cell }
                    };
                    let cells: Vec<String> = record.iter().map(cell).collect();
                    text.push_str(&format!("{}: {}\n", record.line, cells.join(" ; ")));
                }
                Err(error) => return text + &error.message,
            }
        }
    }

    #[test]
    fn quotes_and_lines_are_known() {
        let file = "\u{feff}\"a\",b\r\n\r\n,\"\"\n\"x\ny\",\"say \"\"hi\"\"\"\nlast";
        insta::assert_snapshot!(shown(file.as_bytes()), @"
        1: 'a' ; b
        3:  ; ''
        4: 'x|y' ; 'say \"hi\"'
        6: last
        ");
        assert_eq!(shown(Slow(file.as_bytes())), shown(file.as_bytes()));
    }

    #[test]
    fn an_open_quote_is_an_error() {
        let file = "a,b\n1,\"cut off\n2,x\n";
        insta::assert_snapshot!(shown(file.as_bytes()), @"
        1: a ; b
        line 2: a quote is not closed; add it
        ");
        assert_eq!(shown(&b""[..]), "");
    }
}
