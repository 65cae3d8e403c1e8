//! Backups in object stores: S3 and what speaks its protocol, Google Cloud Storage, Azure.
//!
//! ```text
//! s3://bucket/path ─► location: builder, credentials of the environment ─► storage: files as objects
//! ```

pub mod location;
pub mod storage;
