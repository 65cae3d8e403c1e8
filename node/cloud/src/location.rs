//! Locations of object stores: `s3://bucket/path`, `gs://bucket/path`, `az://container/path`.
//!
//! Credentials and settings come from the environment (`AWS_…`, `GOOGLE_…`, `AZURE_…`), as `object_store` reads them.

use std::sync::Arc;
use std::time::Duration;

use engine::error::{Error, Result};
use nyala_backup::storage::{OpenStorage, Storage};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::{BackoffConfig, ObjectStore, RetryConfig};
use tokio::runtime::Handle;

use super::storage::{ObjectStorage, redacted};

/// Schemes of locations.
const SCHEMES: [&str; 3] = ["s3", "gs", "az"];
/// Times that a request is sent again after an error that may pass.
const RETRIES_MAX: usize = 5;
/// Longest time for a request with all its retries.
const RETRY_TIMEOUT: Duration = Duration::from_secs(120);

/// Returns a function that opens object stores, whose requests run on a runtime.
pub fn opener(runtime: Handle) -> Arc<OpenStorage> {
    Arc::new(move |location| {
        let (scheme, rest) = location.split_once("://")?;
        SCHEMES.contains(&scheme).then(|| open(&runtime, scheme, rest, location))
    })
}

fn open(runtime: &Handle, scheme: &str, rest: &str, location: &str) -> Result<Arc<dyn Storage>> {
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() {
        return Err(Error::invalid(format!("{location}: no bucket; give {scheme}://BUCKET/PATH")));
    }
    // Nothing is requested before the first file is.
    let _entered = runtime.enter();
    let bad = |error| Error::invalid(format!("{location}: {}", redacted(&error)));
    let store = connect(scheme, &format!("{scheme}://{bucket}")).map_err(bad)?;
    let storage = ObjectStorage::new(store, prefix, runtime.clone());
    Ok(Arc::new(storage.map_err(|error| Error::io(location, &error))?))
}

fn connect(scheme: &str, url: &str) -> object_store::Result<Arc<dyn ObjectStore>> {
    let retry = RetryConfig {
        backoff: BackoffConfig { max_backoff: Duration::from_secs(10), ..BackoffConfig::default() },
        max_retries: RETRIES_MAX,
        retry_timeout: RETRY_TIMEOUT,
    };
    Ok(match scheme {
        "s3" => Arc::new(AmazonS3Builder::from_env().with_url(url).with_retry(retry).build()?),
        "gs" => Arc::new(GoogleCloudStorageBuilder::from_env().with_url(url).with_retry(retry).build()?),
        _ => Arc::new(MicrosoftAzureBuilder::from_env().with_url(url).with_retry(retry).build()?),
    })
}
