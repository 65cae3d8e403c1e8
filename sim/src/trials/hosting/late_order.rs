//! An order that an operator gives once more, or later than it was meant.

/// An order to delete a replica that is no member in the configuration with this index.
#[derive(Debug, Clone, Copy)]
pub(super) struct LateOrder {
    pub server: usize,
    pub cas: i64,
}
