//! Memory that a server counts for incomplete requests: nothing of a request stays after its connection has ended.

/// Checks the bytes of incomplete requests that a server counts. There is no verdict while a connection is open, since
/// it may have one.
pub(super) fn check(connections: u64, bytes: u64) -> Result<(), String> {
    match connections == 0 && bytes > 0 {
        true => Err(format!("has no connection, and counts {bytes} bytes of incomplete requests")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_counted_without_connections() {
        assert_eq!(check(0, 0), Ok(()));
        assert_eq!(check(1, 2_000_000), Ok(()), "its request may be incomplete");
        assert!(check(0, 2_000_000).is_err());
    }
}
