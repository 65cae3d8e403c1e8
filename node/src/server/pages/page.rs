//! Content of a page: blocks of facts, tables, text and pictures, with typed cells.

use std::cmp::Ordering;
use std::time::Duration;

use super::options::{PageFormat, PageOptions, encode};
use nyala_common::number_text;

/// Longest text of a cell in characters; the rest is in the cell's title.
pub const TEXT_CHARS_MAX: usize = 256;
/// Rows of a table on one page.
pub const ROWS_PER_PAGE: usize = 1000;

/// Severity of a state or a verdict, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    Good,
    Neutral,
    Warning,
    Bad,
}

impl Severity {
    pub fn name(self) -> &'static str {
        match self {
            Severity::Good => "good",
            Severity::Neutral => "neutral",
            Severity::Warning => "warning",
            Severity::Bad => "bad",
        }
    }
}

/// Content of a page.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WebPage {
    pub title: String,
    /// Severity and text of the line that comes first.
    pub verdict: Option<(Severity, String)>,
    pub blocks: Vec<PageBlock>,
    /// Text in the form that scripts expect, in place of the text of the blocks.
    pub raw: Option<String>,
}

impl WebPage {
    pub fn new(title: impl Into<String>) -> WebPage {
        WebPage { title: title.into(), ..WebPage::default() }
    }

    pub fn verdict(mut self, severity: Severity, text: impl Into<String>) -> WebPage {
        self.verdict = Some((severity, text.into()));
        self
    }

    pub fn with(mut self, block: PageBlock) -> WebPage {
        self.blocks.push(block);
        self
    }

    /// Returns the rows of the longest table that pass the filter; `None` if the page has no table.
    pub fn matching_rows(&self, options: &PageOptions) -> Option<usize> {
        let tables = self.blocks.iter().filter_map(|block| match &block.content {
            BlockContent::Table(table) => Some(table),
            _ => None,
        });
        tables.map(|table| table.matching(options).count()).max()
    }
}

/// Returns the number of pages that rows fill, at least one.
pub fn page_count(rows: usize) -> usize {
    rows.div_ceil(ROWS_PER_PAGE).max(1)
}

/// A part of a page with a heading. The id names it in JSON and in links.
#[derive(Debug, Clone, PartialEq)]
pub struct PageBlock {
    pub id: &'static str,
    pub heading: String,
    pub content: BlockContent,
}

#[derive(Debug, Clone, PartialEq)]
pub enum BlockContent {
    Facts(Vec<PageFact>),
    Table(PageTable),
    /// Lines as they are.
    Text(String),
    Picture(RowsetPicture),
}

impl PageBlock {
    pub fn facts(id: &'static str, heading: impl Into<String>, facts: Vec<PageFact>) -> PageBlock {
        PageBlock { id, heading: heading.into(), content: BlockContent::Facts(facts) }
    }

    pub fn table(id: &'static str, heading: impl Into<String>, table: PageTable) -> PageBlock {
        PageBlock { id, heading: heading.into(), content: BlockContent::Table(table) }
    }

    pub fn text(id: &'static str, heading: impl Into<String>, text: impl Into<String>) -> PageBlock {
        PageBlock { id, heading: heading.into(), content: BlockContent::Text(text.into()) }
    }
}

/// A named value.
#[derive(Debug, Clone, PartialEq)]
pub struct PageFact {
    pub id: &'static str,
    pub name: &'static str,
    pub value: PageCell,
}

/// Creates a fact.
pub fn fact(id: &'static str, name: &'static str, value: impl Into<PageCell>) -> PageFact {
    PageFact { id, name, value: value.into() }
}

/// A table; every row has a cell for each column.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PageTable {
    /// Id and heading of each column.
    pub columns: Vec<(&'static str, &'static str)>,
    pub rows: Vec<Vec<PageCell>>,
}

/// Rows of a table that one page shows.
pub struct TableView<'a> {
    pub rows: Vec<&'a [PageCell]>,
    /// Rows that pass the filter.
    pub matching: usize,
    /// Number of this page, from 1, and of all pages. JSON may be asked for a page after the last, which has no rows.
    pub page: usize,
    pub pages: usize,
}

impl PageTable {
    pub fn new(columns: &[(&'static str, &'static str)]) -> PageTable {
        PageTable { columns: columns.to_vec(), rows: Vec::new() }
    }

    pub fn row(&mut self, cells: Vec<PageCell>) {
        debug_assert_eq!(cells.len(), self.columns.len(), "{:?}", self.columns);
        self.rows.push(cells);
    }

    /// Returns the rows that pass the filter.
    fn matching(&self, options: &PageOptions) -> impl Iterator<Item = &[PageCell]> {
        let wanted = options.filter.to_lowercase();
        let matches = move |row: &&Vec<PageCell>| {
            wanted.is_empty() || row.iter().any(|cell| cell.plain().to_lowercase().contains(&wanted))
        };
        self.rows.iter().filter(matches).map(Vec::as_slice)
    }

    /// Returns the rows that the options ask for. A column that the table does not have sorts nothing.
    pub fn view(&self, options: &PageOptions) -> TableView<'_> {
        let mut rows: Vec<&[PageCell]> = self.matching(options).collect();
        let sorted = options.sort.as_ref();
        if let Some(at) = sorted.and_then(|sort| self.columns.iter().position(|(id, _)| id == sort)) {
            rows.sort_by(|a, b| a[at].compare(&b[at]));
            if options.descending {
                rows.reverse();
            }
        }
        let (matching, pages) = (rows.len(), page_count(rows.len()));
        // A person who follows an old link sees the last page. A program reads on until a page is empty.
        let page = match options.format {
            PageFormat::Json => options.page.max(1),
            PageFormat::Html | PageFormat::Text => options.page.clamp(1, pages),
        };
        let skipped = (page - 1).saturating_mul(ROWS_PER_PAGE);
        let rows = rows.into_iter().skip(skipped).take(ROWS_PER_PAGE).collect();
        TableView { rows, matching, page, pages }
    }
}

/// A typed value.
#[derive(Debug, Clone, PartialEq)]
pub enum PageCell {
    Empty,
    Text(String),
    Count(u64),
    Bytes(u64),
    Time(Duration),
    /// Microseconds since 1970.
    WallTime(u64),
    Ratio(f64),
    State(Severity, String),
    Link(PageLink, String),
    List(Vec<PageCell>),
}

impl From<&str> for PageCell {
    fn from(text: &str) -> PageCell {
        PageCell::Text(text.to_owned())
    }
}

impl From<String> for PageCell {
    fn from(text: String) -> PageCell {
        PageCell::Text(text)
    }
}

impl From<u64> for PageCell {
    fn from(count: u64) -> PageCell {
        PageCell::Count(count)
    }
}

impl From<usize> for PageCell {
    fn from(count: usize) -> PageCell {
        PageCell::Count(count as u64)
    }
}

impl From<bool> for PageCell {
    fn from(value: bool) -> PageCell {
        PageCell::from(if value { "yes" } else { "no" })
    }
}

impl From<Duration> for PageCell {
    fn from(time: Duration) -> PageCell {
        PageCell::Time(time)
    }
}

impl<T: Into<PageCell>> From<Option<T>> for PageCell {
    fn from(value: Option<T>) -> PageCell {
        value.map_or(PageCell::Empty, Into::into)
    }
}

impl PageCell {
    /// Returns a number for people, or the text.
    pub fn plain(&self) -> String {
        match self {
            PageCell::Empty => String::new(),
            PageCell::Text(text) | PageCell::State(_, text) | PageCell::Link(_, text) => visible(text),
            PageCell::Count(count) => number_text::grouped(*count),
            PageCell::Bytes(bytes) => number_text::bytes(*bytes),
            PageCell::Time(time) => time_text(*time),
            PageCell::WallTime(micros) => wall_time(*micros),
            PageCell::Ratio(ratio) => format!("{ratio:.2}"),
            PageCell::List(cells) => cells.iter().map(PageCell::plain).collect::<Vec<_>>().join(", "),
        }
    }

    /// Returns true for numbers, which are aligned at the right.
    pub fn is_number(&self) -> bool {
        self.number().is_some()
    }

    /// Returns the exact value, if the cell rounds it.
    pub fn exact(&self) -> Option<String> {
        match self {
            PageCell::Bytes(bytes) if *bytes >= 1024 => {
                Some(format!("{} bytes", number_text::grouped(*bytes)))
            }
            _ => None,
        }
    }

    fn number(&self) -> Option<f64> {
        match self {
            PageCell::Count(number) | PageCell::Bytes(number) => Some(*number as f64),
            PageCell::Time(time) => Some(time.as_secs_f64()),
            PageCell::Ratio(ratio) => Some(*ratio),
            _ => None,
        }
    }

    fn compare(&self, other: &PageCell) -> Ordering {
        match (self.number(), other.number()) {
            (Some(a), Some(b)) => a.total_cmp(&b),
            (None, Some(_)) => Ordering::Less,
            (Some(_), None) => Ordering::Greater,
            (None, None) => self.plain().cmp(&other.plain()),
        }
    }
}

/// Target of a link: a page of this server, or a page of another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageLink(String);

impl PageLink {
    /// Returns the link to a page of this server. Values of parameters are encoded.
    pub fn page(path: &'static str, params: &[(&str, &str)]) -> PageLink {
        let params: Vec<String> =
            params.iter().map(|(name, value)| format!("{name}={}", encode(value))).collect();
        PageLink(if params.is_empty() { path.to_owned() } else { format!("{path}?{}", params.join("&")) })
    }

    /// Returns the link to a page of the server at a registered address; `None` if that is no host and port.
    pub fn server(https: bool, host: &str, port: u16, path: &str) -> Option<PageLink> {
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        let is_name = !host.is_empty() && host.len() <= 255 && host.bytes().all(is_word);
        let host = match host.parse::<std::net::Ipv6Addr>() {
            Ok(ip) => format!("[{ip}]"),
            Err(_) if is_name => host.to_owned(),
            Err(_) => return None,
        };
        let scheme = if https { "https" } else { "http" };
        Some(PageLink(format!("{scheme}://{host}:{port}{path}")))
    }

    pub fn href(&self) -> &str {
        &self.0
    }
}

/// Returns a cell that links to a server's page, or only the text if the address is no host and port.
pub fn server_link(https: bool, host: &str, port: u16, path: &str, text: String) -> PageCell {
    match PageLink::server(https, host, port, path) {
        Some(link) => PageCell::Link(link, text),
        None => PageCell::Text(text),
    }
}

/// Picture of a tablet's DiskRowSets: x is the place in the key space by bytes, one bar a rowset, stacked so that the
/// bars of a line do not overlap. The number of lines over a key is the number of rowsets that a lookup asks.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RowsetPicture {
    pub bars: Vec<RowsetBar>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct RowsetBar {
    pub rowset: u64,
    /// Ends as fractions of all bytes, from 0 to 1.
    pub low: f64,
    pub high: f64,
    pub rows: u64,
    pub bytes: u64,
    pub delta_files: usize,
    /// True if the compaction policy would compact the rowset now.
    pub chosen: bool,
}

impl RowsetPicture {
    /// Returns the line of each bar, first-fit from line 0.
    pub fn lines(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.bars.len()).collect();
        order.sort_by(|a, b| self.bars[*a].low.total_cmp(&self.bars[*b].low));
        let mut ends: Vec<f64> = Vec::new();
        let mut lines = vec![0; self.bars.len()];
        for at in order {
            let bar = &self.bars[at];
            let line = ends.iter().position(|end| *end <= bar.low).unwrap_or(ends.len());
            if line == ends.len() {
                ends.push(0.0);
            }
            // A rowset of one key takes some width, too.
            ends[line] = bar.high.max(bar.low + f64::EPSILON);
            lines[at] = line;
        }
        lines
    }
}

/// Returns true for characters without a width, and those that change the direction of text.
fn turns_text(letter: char) -> bool {
    let ranges = ['\u{200b}'..='\u{200f}', '\u{2028}'..='\u{202e}', '\u{2060}'..='\u{206f}'];
    matches!(letter, '\u{061c}' | '\u{feff}') || ranges.iter().any(|range| range.contains(&letter))
}

/// Returns the text with control characters and characters that change the direction of text as `\u{…}`.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        let hidden = letter.is_control() || turns_text(letter);
        match hidden {
            true => shown.extend(letter.escape_unicode()),
            false => shown.push(letter),
        }
    }
    shown
}

/// Returns the beginning of a text, and the whole text if that is longer.
pub fn cut(text: &str) -> (String, Option<&str>) {
    match text.char_indices().nth(TEXT_CHARS_MAX) {
        None => (text.to_owned(), None),
        Some((end, _)) => (format!("{}…", &text[..end]), Some(text)),
    }
}

fn time_text(time: Duration) -> String {
    match time.as_secs() {
        0 if time.as_millis() == 0 => format!("{} µs", time.as_micros()),
        0 => format!("{} ms", time.as_millis()),
        seconds @ 1..60 => format!("{seconds}.{} s", time.subsec_millis() / 100),
        seconds @ 60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds @ 3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        seconds => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// Returns a time in microseconds since 1970 as `2026-11-25T01:02:03Z`.
pub fn wall_time(micros: u64) -> String {
    let time = i64::try_from(micros).ok().and_then(chrono::DateTime::from_timestamp_micros);
    time.map_or_else(|| micros.to_string(), |time| time.format("%Y-%m-%dT%H:%M:%SZ").to_string())
}
