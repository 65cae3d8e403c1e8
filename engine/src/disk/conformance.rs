//! What every [`Disk`](super::Disk) promises, checked by running it.
