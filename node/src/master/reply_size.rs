//! Size of a reply with a list: servers and clients refuse messages of more than `rpc_max_message_size`, and the
//! elements of a list may be large, such as the dimension labels of tablets.

use std::fmt::Display;

use engine::error::{Error, Result};
use prost::Message;

/// Most bytes of a list: less than a message has by default, 50 MiB.
const BYTES_MAX: usize = 40 << 20;

/// Bytes of a reply's list so far.
#[derive(Debug, Default)]
pub(super) struct ReplySize {
    bytes: usize,
}

impl ReplySize {
    /// Builds and counts an element. `Invalid` if the list gets too long; then every later one is refused unbuilt.
    pub(super) fn add<M: Message>(&mut self, what: impl Display, build: impl FnOnce() -> M) -> Result<M> {
        if self.bytes <= BYTES_MAX {
            let element = build();
            self.bytes += element.encoded_len();
            if self.bytes <= BYTES_MAX {
                return Ok(element);
            }
        }
        Err(Error::invalid(format!(
            "{what}: does not fit into the reply (limit {BYTES_MAX} bytes); ask for fewer tables or tablets at a time"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use nyala_proto::kudu::master::TabletLocationsPb;

    #[test]
    fn elements_beyond_the_limit_are_refused_and_no_more_are_built() {
        let tablet = |bytes: usize| TabletLocationsPb {
            tablet_id: Bytes::from(vec![b't'; bytes]),
            ..TabletLocationsPb::default()
        };
        let mut size = ReplySize::default();
        for name in ["a", "b"] {
            assert!(size.add(name, || tablet(BYTES_MAX / 2 - 16)).is_ok());
        }
        let refused = size.add("tablet c", || tablet(32)).expect_err("too long");
        assert_eq!(
            refused.message,
            "tablet c: does not fit into the reply (limit 41943040 bytes); ask for fewer tables or tablets at a time"
        );
        let later = size.add("tablet d", || -> TabletLocationsPb { panic!("it is not built") });
        assert!(later.is_err());
    }
}
