//! Kudu's encodings and a plain client, written from the protocol's documentation alone.
//!
//! Invariant: nothing here uses the encodings of `engine`, `nyala-common` or `nyala-client`, so that a mistake which
//! servers and their client share does not hide. Shared are the message types and the framing of calls.
//!
//! | file | content |
//! | --- | --- |
//! | [`keys`] | encoded keys, hashes of hash levels, bounds of tablets |
//! | [`bloom`] | Bloom filters of predicates |
//! | [`rows`] | row operations; row-wise and columnar replies |
//! | [`checksum`] | checksums of rows |
//! | [`schema`] | columns, tables and tests as messages |
//! | [`connections`] | what masters tell clients that connect |
//! | [`client`] | calls to masters and tablet servers, routed by GetTableLocations |

pub mod bloom;
pub mod checksum;
pub mod client;
pub mod connections;
pub mod keys;
pub mod rows;
pub mod scan;
pub mod schema;
