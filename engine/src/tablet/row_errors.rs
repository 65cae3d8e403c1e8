//! Errors of the rows of one write. Their texts are bounded, because they go to the log, to memory, and to the client.
//!
//! ```text
//!   row 0    text              ┐
//!   row 1    text              ├ at most TEXT_BYTES_MAX
//!   …                          ┘
//!   row 400  fixed text of its code, as for every later row whose text is longer
//! ```
//!
//! Invariant: texts depend only on the errors and their order, so all replicas record the same outcome.

use crate::schema::row_ops::{RowError, RowErrorCode};

/// Most bytes of the texts of a write's errors together, without fixed texts.
pub(crate) const TEXT_BYTES_MAX: usize = 1 << 20;
/// Bytes of the longest fixed text.
pub(crate) const FIXED_TEXT_BYTES_MAX: usize = 19;

/// Errors of rows, with the index of each row in the request.
#[derive(Debug, Default)]
pub struct RowErrors {
    errors: Vec<(u32, RowError)>,
    /// Bytes of the texts that are longer than their fixed text.
    text_bytes: usize,
}

impl RowErrors {
    /// Adds the error of a row. If the texts so far leave no space for its own, it gets the fixed text of its code.
    pub fn push(&mut self, index: u32, mut error: RowError) {
        let (bytes, fixed) = (error.message.len(), fixed_text(error.code));
        if bytes > fixed.len() {
            match self.text_bytes + bytes {
                sum if sum <= TEXT_BYTES_MAX => self.text_bytes = sum,
                _ => error.message = fixed.to_string(),
            }
        }
        self.errors.push((index, error));
    }

    /// Returns the errors in the order in which they were added.
    pub fn into_vec(self) -> Vec<(u32, RowError)> {
        self.errors
    }

    /// Returns the bytes of memory allocated.
    pub fn byte_size(&self) -> usize {
        let texts: usize = self.errors.iter().map(|(_, error)| error.message.capacity()).sum();
        self.errors.capacity() * size_of::<(u32, RowError)>() + texts
    }
}

/// Returns the text of an error that names nothing of the row or the table.
pub(super) fn fixed_text(code: RowErrorCode) -> &'static str {
    match code {
        RowErrorCode::AlreadyPresent => "key already present",
        RowErrorCode::NotFound => "key not found",
        RowErrorCode::InvalidArgument => "invalid row",
        RowErrorCode::Immutable => "immutable column",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_bounded_in_the_order_of_the_rows() {
        let mut errors = RowErrors::default();
        errors.push(0, RowError::invalid("x".repeat(TEXT_BYTES_MAX - 30)));
        errors.push(1, RowError::invalid("too long by a byte".repeat(31)));
        errors.push(2, RowError::new(RowErrorCode::AlreadyPresent, "key already present"));
        errors.push(3, RowError::invalid("this text has 30 bytes exactly"));
        errors.push(4, RowError::new(RowErrorCode::Immutable, "UPDATE not allowed"));
        errors.push(5, RowError::invalid("short"));
        let texts: Vec<_> = errors.into_vec().into_iter().map(|(_, error)| error.message).collect();
        assert_eq!(texts[0].len(), TEXT_BYTES_MAX - 30);
        let rest = [
            "invalid row",
            "key already present",
            "this text has 30 bytes exactly",
            "immutable column",
            "short",
        ];
        assert_eq!(texts[1..], rest);
    }

    #[test]
    fn fixed_texts_are_short() {
        use RowErrorCode::*;
        let longest =
            [AlreadyPresent, NotFound, InvalidArgument, Immutable].map(|code| fixed_text(code).len());
        assert_eq!(longest.into_iter().max(), Some(FIXED_TEXT_BYTES_MAX));
    }
}
