//! Python package of nyala and Apache Kudu clusters, over the Rust client.
//!
//! ```text
//!   connect ─► Client ─► Table ─┬─ scan ─► Scan: Arrow stream (PyCapsule interface) or rows as dictionaries
//!                               └─ write ◄── dictionaries (value) or Arrow data
//!   col("x") >= 1  ─► Filter ─► predicates that the servers evaluate
//! ```
//!
//! The interpreter's lock is released while a call waits ([`wait`]). Signals are looked at while it does, so that
//! Ctrl-C ends a call; what it had open on servers is closed. A write ends once no row of it is in flight.

mod client;
mod error;
mod filter;
mod row;
mod scan;
mod table;
mod value;
mod wait;
mod write;

use pyo3::prelude::*;

/// Native part of the package `nyala`.
#[pymodule]
fn _nyala(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(client::connect, module)?)?;
    module.add_function(wrap_pyfunction!(filter::col, module)?)?;
    module.add_class::<client::Client>()?;
    module.add_class::<table::Table>()?;
    module.add_class::<scan::Scan>()?;
    module.add_class::<scan::Rows>()?;
    module.add_class::<write::WriteResult>()?;
    module.add_class::<filter::Column>()?;
    module.add_class::<filter::Filter>()?;
    error::add_to(module)
}
