//! The source of a copy as its sink sees it: one session over the wire, resumed after every failure of the network.

use std::time::Duration;

use bytes::Bytes;
use engine::error::{Error, Result};
use engine::replica::copy::{Chunk, Manifest, Part};
use prost::Message;

use super::service::{SERVICE, data_id};
use super::sink::{Order, Target};
use crate::env::Env;
use crate::proto::kudu::tserver::{
    BeginTabletCopySessionRequestPb, BeginTabletCopySessionResponsePb, EndTabletCopySessionRequestPb,
    EndTabletCopySessionResponsePb, FetchDataRequestPb, FetchDataResponsePb, TabletCopyErrorPb,
};
use crate::rpc::client::{CallOptions, Proxy, RpcError};
use crate::wire::convert::id_bytes;
use crate::wire::status::{error_from_status, status_from_error};

/// The name servers call each other by.
const USER: &str = "nyala";
/// So often in a row a piece is asked for in vain before the copy is given up.
const ATTEMPTS: u32 = 8;
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// A session at a source.
pub(super) struct Remote<'a> {
    env: &'a Env,
    proxy: Proxy,
    timeout: Duration,
    chunk_bytes: usize,
    session: Bytes,
}

/// Why a call brought nothing.
enum Failure {
    /// Another attempt may do.
    Passing(Error),
    Final(Error),
}

impl<'a> Remote<'a> {
    /// Asks the source to fix its state. `Invalid` if another server answers.
    pub async fn begin(target: &Target<'a>, order: &Order) -> Result<Remote<'a>> {
        let proxy = Proxy::new(target.env.clone(), order.addr.as_str(), USER);
        let (timeout, chunk_bytes) = (target.config.call_timeout, target.config.chunk_bytes);
        let mut remote = Remote { env: target.env, proxy, timeout, chunk_bytes, session: Bytes::new() };
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
                "server {found} answers at {}, where server {} should be; is it of another cluster?",
                order.addr, order.source
            ));
            remote.end(Some(&error)).await;
            return Err(error);
        }
        Ok(remote)
    }

    /// What the copy consists of.
    pub async fn manifest(&mut self) -> Result<Manifest> {
        let mut bytes = Vec::new();
        loop {
            let chunk = self.fetch(Part::Manifest, bytes.len() as u64).await?;
            bytes.extend_from_slice(&chunk.data);
            if bytes.len() as u64 >= chunk.total {
                return Manifest::decode(&bytes);
            }
            if chunk.data.is_empty() {
                return Err(Error::corrupt("the manifest of a tablet copy ends early"));
            }
        }
    }

    /// Bytes of a part from `offset` on, whole as they were sent: damaged ones are fetched again.
    pub async fn fetch(&mut self, part: Part, offset: u64) -> Result<Chunk> {
        let request = FetchDataRequestPb {
            session_id: self.session.clone(),
            data_id: data_id(part),
            offset: Some(offset),
            max_length: Some(self.chunk_bytes as i64),
        };
        let mut failures = 0;
        loop {
            let failure = match self.try_fetch(&request).await {
                Ok(chunk) => return Ok(chunk),
                Err(Failure::Final(error)) => return Err(error.context(format_args!("fetch {part:?}"))),
                Err(Failure::Passing(error)) => error.context(format_args!("fetch {part:?}")),
            };
            failures += 1;
            self.pause(failures, failure).await?;
        }
    }

    async fn try_fetch(&self, request: &FetchDataRequestPb) -> Result<Chunk, Failure> {
        let response: FetchDataResponsePb = self.call("FetchData", request).await?;
        let pb = response.chunk;
        let total = u64::try_from(pb.total_data_length)
            .map_err(|_| Failure::Final(Error::corrupt("a part of negative length")))?;
        let chunk = Chunk { offset: pb.offset, crc32c: pb.crc32, data: pb.data.to_vec(), total };
        chunk.check().map_err(Failure::Passing)?;
        Ok(chunk)
    }

    /// Ends the session, whose source may be gone: then it ends by itself.
    pub async fn end(&mut self, error: Option<&Error>) {
        let request = EndTabletCopySessionRequestPb {
            session_id: self.session.clone(),
            is_success: error.is_none(),
            error: error.map(status_from_error),
        };
        let ended: Result<EndTabletCopySessionResponsePb, _> =
            self.call("EndTabletCopySession", &request).await;
        if let Err(Failure::Passing(error) | Failure::Final(error)) = ended {
            tracing::debug!(%error, "the session of a tablet copy could not be ended");
        }
    }

    /// Waits before the next attempt, or gives up with `error`.
    async fn pause(&self, failures: u32, error: Error) -> Result<()> {
        if failures >= ATTEMPTS {
            return Err(error.context(format_args!("given up after {failures} attempts")));
        }
        self.env.sleep((PAUSE_FIRST * 2u32.pow(failures - 1)).min(PAUSE_MAX)).await;
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
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Passing(error)) => {
                    failures += 1;
                    self.pause(failures, error).await?;
                }
            }
        }
    }

    async fn call<Q, R>(&self, method: &str, request: &Q) -> Result<R, Failure>
    where
        Q: Message,
        R: Message + Default,
    {
        let deadline = self.env.now().mono.after(self.timeout);
        let call = self.proxy.call(SERVICE, method, request, deadline, CallOptions::default());
        call.await.map(|response| response.message).map_err(failure)
    }
}

/// A source that says what is wrong is not asked again, one that cannot be reached or is busy is.
fn failure(error: RpcError) -> Failure {
    let RpcError::Remote { copy_error, .. } = &error else {
        return Failure::Passing(Error::not_ready(error.to_string()));
    };
    let told = copy_error.clone().and_then(|bytes| TabletCopyErrorPb::decode(bytes).ok());
    match told {
        Some(told) => {
            let code = told.code().as_str_name();
            let error = error_from_status(&told.status).context(code);
            match error.kind {
                engine::error::ErrorKind::NotReady => Failure::Passing(error),
                _ => Failure::Final(error),
            }
        }
        None if error.is_busy() || error.is_unreachable() => {
            Failure::Passing(Error::not_ready(error.to_string()))
        }
        None => Failure::Final(Error::invalid(error.to_string())),
    }
}
