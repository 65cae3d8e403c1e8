//! Length of the messages of error replies.
//!
//! Messages repeat ids and names of requests, which may be as long as a frame; escaped, they are several times as long.
//! Replies wait for the socket without a reservation, so their messages are cut.

/// Bytes of a message, at most. The longest of sound requests name some dozens of columns.
const BYTES_MAX: usize = 16 << 10;

/// Returns a message, cut at its limit.
pub fn cut(mut message: String) -> String {
    if message.len() > BYTES_MAX {
        message.truncate(message.floor_char_boundary(BYTES_MAX));
        message.push('…');
        message.shrink_to_fit();
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_end_between_characters() {
        assert_eq!(cut("short".to_string()), "short");
        let whole = "x".repeat(BYTES_MAX);
        assert_eq!(cut(whole.clone()), whole);
        let long = cut("xé".repeat(BYTES_MAX));
        assert!(long.ends_with("é…") || long.ends_with("x…"), "{}", &long[BYTES_MAX - 4..]);
        assert!(long.len() <= BYTES_MAX + '…'.len_utf8() && long.capacity() < 2 * BYTES_MAX);
    }
}
