//! Bytes between a client and the bare server, of the size of an operation with a row.
//!
//! ```text
//! request   u32 LE length of the request's body | u32 LE length of the reply's body | body
//! reply     body
//! ```

use super::Operation;

pub(super) const HEAD: usize = 8;
/// Bytes of a row's values.
const ROW: usize = 1000;
/// Bytes of a key, or of a short reply.
const SMALL: usize = 24;
/// Largest body that the server accepts.
pub(super) const BODY_MAX: usize = 1 << 20;

/// Lengths of a request's body and of its reply's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lengths {
    pub request: usize,
    pub reply: usize,
}

impl Lengths {
    pub(super) fn of(operation: Operation) -> Lengths {
        match operation {
            Operation::Insert | Operation::Update => Lengths { request: SMALL + ROW, reply: SMALL },
            Operation::Read => Lengths { request: SMALL, reply: ROW },
        }
    }

    /// Returns true if the request has the row and not the reply.
    pub(super) fn is_write(self) -> bool {
        self.request > self.reply
    }

    pub(super) fn encode(self) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&(self.request as u32).to_le_bytes());
        head[4..].copy_from_slice(&(self.reply as u32).to_le_bytes());
        head
    }

    /// Decodes the head of a request; the error names a length above the limit.
    pub(super) fn decode(head: &[u8; HEAD]) -> Result<Lengths, String> {
        let [a, b, c, d, e, f, g, h] = *head;
        let length = |bytes| u32::from_le_bytes(bytes) as usize;
        let lengths = Lengths { request: length([a, b, c, d]), reply: length([e, f, g, h]) };
        let longest = lengths.request.max(lengths.reply);
        if longest > BODY_MAX {
            return Err(format!("a body of {longest} bytes, at most {BODY_MAX}; send shorter ones"));
        }
        Ok(lengths)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_as_written() {
        for operation in [Operation::Insert, Operation::Update, Operation::Read] {
            let lengths = Lengths::of(operation);
            assert_eq!(Lengths::decode(&lengths.encode()), Ok(lengths));
            assert_eq!(lengths.is_write(), operation != Operation::Read);
        }
        let long = Lengths { request: 0, reply: BODY_MAX + 1 };
        assert!(Lengths::decode(&long.encode()).unwrap_err().contains("1048577 bytes"));
    }
}
