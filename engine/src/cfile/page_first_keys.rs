//! The first keys of a stream's pages, with which the page of a key is found.

use super::key_prefix::key_prefix;

/// The first key of each page, encoded, with which the page of a key is found.
///
/// The first eight bytes of all keys are stored contiguously as integers, so that most of a search touches little
/// memory.
#[derive(Debug, Default)]
pub struct PageFirstKeys {
    prefixes: Vec<u64>,
    keys: Vec<Vec<u8>>,
}

impl PageFirstKeys {
    /// Creates the list from keys in ascending order.
    pub fn new(keys: impl Iterator<Item = Vec<u8>>) -> PageFirstKeys {
        let keys: Vec<Vec<u8>> = keys.collect();
        PageFirstKeys { prefixes: keys.iter().map(|key| key_prefix(key)).collect(), keys }
    }

    /// Bytes of memory allocated.
    pub fn byte_size(&self) -> usize {
        let key = |key: &Vec<u8>| size_of::<Vec<u8>>() + key.capacity();
        self.keys.iter().map(key).sum::<usize>() + size_of_val(&self.prefixes[..])
    }

    /// Returns the last page whose first key is not above `key`; `None` if `key` is before all.
    pub fn page_of(&self, key: &[u8]) -> Option<usize> {
        let wanted = key_prefix(key);
        let first = self.prefixes.partition_point(|prefix| *prefix < wanted);
        let alike = self.prefixes[first..].partition_point(|prefix| *prefix == wanted);
        let not_above = self.keys[first..first + alike].partition_point(|first_key| &first_key[..] <= key);
        (first + not_above).checked_sub(1)
    }
}
