//! Sidecars of a reply.

use bytes::Bytes;

/// Sidecars of a reply, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sidecars {
    /// Each in a buffer of its own.
    Separate(Vec<Bytes>),
    /// All one after the other in one buffer, with their ends in it: for sidecars of a few bytes, which cost less to
    /// copy than to own.
    Shared { bytes: Bytes, ends: Vec<usize> },
}

impl Default for Sidecars {
    fn default() -> Sidecars {
        Sidecars::Separate(Vec::new())
    }
}

impl From<Vec<Bytes>> for Sidecars {
    fn from(sidecars: Vec<Bytes>) -> Sidecars {
        Sidecars::Separate(sidecars)
    }
}

impl Sidecars {
    /// Returns the number of bytes of all.
    pub fn byte_size(&self) -> usize {
        match self {
            Sidecars::Separate(sidecars) => sidecars.iter().map(Bytes::len).sum(),
            Sidecars::Shared { bytes, .. } => bytes.len(),
        }
    }

    /// Returns the end of each, counted from the first byte of the first one.
    pub fn ends(&self) -> Vec<usize> {
        match self {
            Sidecars::Shared { ends, .. } => ends.clone(),
            Sidecars::Separate(sidecars) => {
                let end = |end: &mut usize, sidecar: &Bytes| {
                    *end += sidecar.len();
                    Some(*end)
                };
                sidecars.iter().scan(0, end).collect()
            }
        }
    }

    /// Returns the buffers, whose bytes are those of all sidecars one after the other.
    pub fn into_buffers(self) -> Vec<Bytes> {
        match self {
            Sidecars::Separate(sidecars) => sidecars,
            Sidecars::Shared { bytes, .. } => vec![bytes],
        }
    }

    /// Returns each sidecar.
    pub fn to_vec(&self) -> Vec<Bytes> {
        match self {
            Sidecars::Separate(sidecars) => sidecars.clone(),
            Sidecars::Shared { bytes, ends } => {
                let starts = [0].iter().chain(ends);
                starts.zip(ends).map(|(start, end)| bytes.slice(*start..*end)).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_sidecars_are_those_of_separate_buffers() {
        let separate = vec![Bytes::from_static(b"ab"), Bytes::new(), Bytes::from_static(b"c")];
        let shared = Sidecars::Shared { bytes: Bytes::from_static(b"abc"), ends: vec![2, 2, 3] };
        assert_eq!((shared.to_vec(), shared.byte_size()), (separate.clone(), 3));
        assert_eq!(shared.ends(), Sidecars::from(separate).ends());
        assert_eq!(shared.into_buffers().concat(), b"abc");
        assert_eq!(Sidecars::default().ends(), Vec::<usize>::new());
    }
}
