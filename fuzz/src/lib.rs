//! Fuzz targets as plain functions, so that `cargo test` replays every corpus file on a stable toolchain.
