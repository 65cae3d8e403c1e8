//! Client of a copy's source: one session over the wire, resumed after network failures.

use std::time::Duration;

use bytes::Bytes;
use engine::error::{Error, Result};
use engine::replica::copy::{CopyChunk, CopyManifest, CopyPart};
use prost::Message;

use super::order::{CopyOrder, CopyTarget};
use super::service::{SERVICE, data_id};
use nyala_common::env::Env;
use nyala_common::rpc::client::{CallOptions, Proxy, RpcError};
use nyala_common::wire::errors::{error_from_status, status_from_error};
use nyala_common::wire::schema::id_bytes;
use nyala_proto::kudu::tserver::{
    BeginTabletCopySessionRequestPb, BeginTabletCopySessionResponsePb, EndTabletCopySessionRequestPb,
    EndTabletCopySessionResponsePb, FetchDataRequestPb, FetchDataResponsePb, TabletCopyErrorPb,
};

/// Consecutive failures of one part after which the copy fails.
const ATTEMPTS: u32 = 8;
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// A session at a source.
pub(super) struct CopySourceClient<'a> {
    env: &'a Env,
    proxy: Proxy,
    timeout: Duration,
    chunk_bytes: usize,
    session: Bytes,
}

/// Failure of a call to the source.
enum SourceCallFailure {
    /// Transient: a retry may succeed.
    Passing(Error),
    /// The source works but has no turn for this call now.
    Busy(Error),
    Final(Error),
}

impl SourceCallFailure {
    fn into_error(self) -> Error {
        match self {
            SourceCallFailure::Passing(error)
            | SourceCallFailure::Busy(error)
            | SourceCallFailure::Final(error) => error,
        }
    }
}

impl<'a> CopySourceClient<'a> {
    /// Asks the source to fix its state. `Invalid` if another server replies.
    pub(super) async fn begin(target: &CopyTarget<'a>, order: &CopyOrder) -> Result<CopySourceClient<'a>> {
        let proxy = Proxy::new(target.env.clone(), order.addr.as_str(), &target.caller);
        let (timeout, chunk_bytes) = (target.config.call_timeout, target.config.chunk_bytes);
        let mut remote =
            CopySourceClient { env: target.env, proxy, timeout, chunk_bytes, session: Bytes::new() };
        let request = BeginTabletCopySessionRequestPb {
            requestor_uuid: id_bytes(&target.me),
            tablet_id: id_bytes(&order.tablet),
            auto_download_superblock_in_batch: Some(true),
        };
        let begun: BeginTabletCopySessionResponsePb =
            remote.call_patiently("BeginTabletCopySession", &request).await?;
        remote.session = begun.session_id;
        let responder = begun.responder_uuid.unwrap_or_default();
        if responder != id_bytes(&order.source) {
            let found = String::from_utf8_lossy(&responder).into_owned();
            let error = Error::invalid(format!(
                "server {found} replies at {}, where server {} should be; is it of another cluster?",
                order.addr, order.source
            ));
            remote.end(Some(&error)).await;
            return Err(error);
        }
        Ok(remote)
    }

    /// Fetches the manifest of the copy.
    pub(super) async fn manifest(&mut self) -> Result<CopyManifest> {
        let mut bytes = Vec::new();
        loop {
            let chunk = self.fetch(CopyPart::Manifest, bytes.len() as u64).await?;
            bytes.extend_from_slice(&chunk.data);
            if bytes.len() as u64 >= chunk.total {
                return CopyManifest::decode(&bytes);
            }
            if chunk.data.is_empty() {
                return Err(Error::corrupt("the manifest of a tablet copy ends early"));
            }
        }
    }

    /// Fetches bytes of a part from `offset` on. Verifies their checksum and fetches corrupted ones again. Waits for as
    /// long as the source is busy: a copy that gave up would begin from its first byte again, and at a source with a
    /// limited rate no copy would end.
    pub(super) async fn fetch(&mut self, part: CopyPart, offset: u64) -> Result<CopyChunk> {
        let request = FetchDataRequestPb {
            session_id: self.session.clone(),
            data_id: data_id(part),
            offset: Some(offset),
            max_length: Some(self.chunk_bytes as i64),
        };
        let (mut failures, mut refusals) = (0, 0);
        loop {
            match self.try_fetch(&request).await {
                Ok(chunk) => return Ok(chunk),
                Err(SourceCallFailure::Final(error)) => {
                    return Err(error.context(format_args!("fetch {part:?}")));
                }
                Err(SourceCallFailure::Busy(_)) => {
                    refusals += 1;
                    self.env.sleep(pause_after(refusals)).await;
                }
                Err(SourceCallFailure::Passing(error)) => {
                    failures += 1;
                    let error = error.context(format_args!("fetch {part:?}"));
                    self.pause(failures, error).await?;
                }
            }
        }
    }

    async fn try_fetch(&self, request: &FetchDataRequestPb) -> Result<CopyChunk, SourceCallFailure> {
        let response: FetchDataResponsePb = self.call("FetchData", request).await?;
        let pb = response.chunk;
        let total = u64::try_from(pb.total_data_length)
            .map_err(|_| SourceCallFailure::Final(Error::corrupt("a part of negative length")))?;
        let chunk = CopyChunk { offset: pb.offset, crc32c: pb.crc32, data: pb.data.to_vec(), total };
        chunk.check().map_err(SourceCallFailure::Passing)?;
        Ok(chunk)
    }

    /// Ends the session. If the source is unreachable the session expires by itself.
    pub(super) async fn end(&mut self, error: Option<&Error>) {
        let request = EndTabletCopySessionRequestPb {
            session_id: self.session.clone(),
            is_success: error.is_none(),
            error: error.map(status_from_error),
        };
        let ended: Result<EndTabletCopySessionResponsePb, _> =
            self.call("EndTabletCopySession", &request).await;
        if let Err(failure) = ended {
            let error = failure.into_error();
            tracing::debug!(%error, "the session of a tablet copy could not be ended");
        }
    }

    /// Waits before the next attempt, or returns `error` after the last one.
    async fn pause(&self, failures: u32, error: Error) -> Result<()> {
        if failures >= ATTEMPTS {
            return Err(error.context(format_args!("given up after {failures} attempts")));
        }
        self.env.sleep(pause_after(failures)).await;
        Ok(())
    }

    async fn call_patiently<Q, R>(&self, method: &str, request: &Q) -> Result<R>
    where
        Q: Message,
        R: Message + Default,
    {
        let mut failures = 0;
        loop {
            match self.call(method, request).await {
                Ok(response) => return Ok(response),
                Err(SourceCallFailure::Final(error)) => return Err(error),
                Err(SourceCallFailure::Passing(error) | SourceCallFailure::Busy(error)) => {
                    failures += 1;
                    self.pause(failures, error).await?;
                }
            }
        }
    }

    async fn call<Q, R>(&self, method: &str, request: &Q) -> Result<R, SourceCallFailure>
    where
        Q: Message,
        R: Message + Default,
    {
        let deadline = self.env.now().mono.after(self.timeout);
        let call = self.proxy.call(SERVICE, method, request, deadline, CallOptions::default());
        call.await.map(|response| response.message).map_err(failure)
    }
}

/// Returns the pause after this many attempts, from 1.
fn pause_after(attempts: u32) -> Duration {
    PAUSE_FIRST.saturating_mul(2u32.saturating_pow(attempts - 1)).min(PAUSE_MAX)
}

/// Classifies a failure: an error from the source is final, an unreachable or busy source is retried.
fn failure(error: RpcError) -> SourceCallFailure {
    let RpcError::Remote { copy_error, .. } = &error else {
        return SourceCallFailure::Passing(Error::not_ready(error.to_string()));
    };
    let source_error = copy_error.clone().and_then(|bytes| TabletCopyErrorPb::decode(bytes).ok());
    match source_error {
        Some(source_error) => {
            let code = source_error.code().as_str_name();
            let error = error_from_status(&source_error.status).context(code);
            match error.kind {
                engine::error::ErrorKind::NotReady => SourceCallFailure::Passing(error),
                _ => SourceCallFailure::Final(error),
            }
        }
        None if error.is_busy() => SourceCallFailure::Busy(Error::not_ready(error.to_string())),
        None if error.is_unreachable() => SourceCallFailure::Passing(Error::not_ready(error.to_string())),
        None => SourceCallFailure::Final(Error::invalid(error.to_string())),
    }
}
