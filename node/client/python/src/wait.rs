//! Waiting for a future without the interpreter's lock.
#![expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a process of its own, outside the seam"
)]

use std::future::Future;
use std::sync::OnceLock;
use std::time::Duration;

use pyo3::prelude::*;
use tokio::runtime::{Builder, Runtime};

/// Time between two looks at pending signals.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// Returns the runtime of all clients of the process.
fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("nyala")
            .enable_all()
            .build()
            .expect("the process can start threads")
    })
}

/// Waits for the future. Ctrl-C drops it and raises `KeyboardInterrupt`.
pub(crate) fn wait<F>(py: Python<'_>, future: F) -> PyResult<F::Output>
where
    F: Future + Send,
    F::Output: Send,
{
    py.detach(|| {
        runtime().block_on(async {
            tokio::pin!(future);
            loop {
                if let Ok(output) = tokio::time::timeout(SIGNAL_INTERVAL, &mut future).await {
                    return Ok(output);
                }
                Python::attach(|py| py.check_signals())?;
            }
        })
    })
}

/// Runs `drop` where tasks can be spawned: dropped scans close their scanners in tasks.
pub(crate) fn in_runtime<T>(work: impl FnOnce() -> T) -> T {
    let _entered = runtime().enter();
    work()
}
