//! Tables whose key is one text: the encoded key of a row is that text, and no bytes at all for the empty one.

use sim_plan::RandomStream;
use sim_plan::tables::{ModelTable, TypeWord};

use crate::model::ColNo;
use crate::trials::draw;

/// Percentage of trials with such a table.
const TEXT_KEY_PERCENT: u64 = 40;

/// Returns the table of a trial: in some trials one whose key is one text, in place of the one that was drawn. Its
/// draws are a stream of their own.
pub(super) fn table_of(seed: u64, drawn: ModelTable) -> ModelTable {
    let mut random = RandomStream::new(seed, "storage trial, hosted, text keys");
    let mut table = drawn;
    if random.percent(TEXT_KEY_PERCENT) {
        while text_key(&table).is_none() {
            table = draw::table(&mut random);
        }
    }
    table
}

/// Returns the number of the key column if it is the only one, and a text.
pub(super) fn text_key(table: &ModelTable) -> Option<ColNo> {
    use TypeWord::{Binary, String, Varchar};
    match table.key_columns() {
        [column] if matches!(column.kind.word, String | Binary | Varchar) => Some(column.number),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_trials_have_a_key_that_is_one_text() {
        let drawn = |seed: u64| draw::table(&mut RandomStream::new(seed, "test"));
        let tables: Vec<ModelTable> = (0..50).map(|seed| table_of(seed, drawn(seed))).collect();
        let with_text = tables.iter().filter(|table| text_key(table).is_some()).count();
        assert!((10..45).contains(&with_text), "{with_text} of 50");
    }
}
