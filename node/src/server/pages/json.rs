//! JSON of a page: an object with a member for each block; a table is an array of objects.
//!
//! An array has the rows of one page: headers say how many rows there are (`list_headers`), so that programs which know
//! only the array still read it.

use serde_json::{Map, Value, json};

use super::options::PageOptions;
use super::page::{BlockContent, PageBlock, PageCell, PageTable, RowsetPicture, WebPage, wall_time};

/// Returns the page as JSON.
pub fn render(page: &WebPage, options: &PageOptions) -> String {
    let mut object = Map::new();
    object.insert("title".to_owned(), json!(page.title));
    if let Some((severity, text)) = &page.verdict {
        object.insert("verdict".to_owned(), json!({ "severity": severity.name(), "text": text }));
    }
    for block in &page.blocks {
        object.insert(block.id.to_owned(), block_value(block, options));
    }
    encode(&Value::Object(object))
}

/// Returns a value as JSON in which no `<` can end a script or a comment of a page that contains it.
pub fn encode(value: &Value) -> String {
    // In JSON `<` can only stand inside of strings.
    value.to_string().replace('<', "\\u003c")
}

fn block_value(block: &PageBlock, options: &PageOptions) -> Value {
    match &block.content {
        BlockContent::Facts(facts) => {
            let member = |fact: &super::page::PageFact| (fact.id.to_owned(), cell(&fact.value));
            Value::Object(facts.iter().map(member).collect())
        }
        BlockContent::Table(table) => rows(table, options),
        BlockContent::Text(text) => json!(text),
        BlockContent::Picture(picture) => bars(picture),
    }
}

fn rows(table: &PageTable, options: &PageOptions) -> Value {
    let object = |row: &&[PageCell]| {
        let member = |((id, _), value): (&(&str, &str), &PageCell)| ((*id).to_owned(), cell(value));
        Value::Object(table.columns.iter().zip(row.iter()).map(member).collect())
    };
    Value::Array(table.view(options).rows.iter().map(object).collect())
}

/// Returns bytes and counts as numbers, times as milliseconds, and the rest as text.
fn cell(value: &PageCell) -> Value {
    match value {
        PageCell::Empty => Value::Null,
        PageCell::Text(text) | PageCell::State(_, text) | PageCell::Link(_, text) => json!(text),
        PageCell::Count(number) | PageCell::Bytes(number) => json!(number),
        PageCell::Time(time) => json!(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        PageCell::WallTime(micros) => json!(wall_time(*micros)),
        PageCell::Ratio(ratio) => json!(ratio),
        PageCell::List(cells) => Value::Array(cells.iter().map(cell).collect()),
    }
}

fn bars(picture: &RowsetPicture) -> Value {
    let lines = picture.lines();
    let bar = |(bar, line): (&super::page::RowsetBar, usize)| {
        json!({
            "rowset": bar.rowset, "low": bar.low, "high": bar.high, "line": line, "rows": bar.rows,
            "bytes": bar.bytes, "delta_files": bar.delta_files, "chosen": bar.chosen,
        })
    };
    Value::Array(picture.bars.iter().zip(lines).map(bar).collect())
}
