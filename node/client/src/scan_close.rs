//! Closing of the server's scanner when a scan is dropped before its end.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use nyala_common::env::BoxFuture;
use nyala_common::rpc::client::{CallOptions, Proxy, RpcError, RpcResponse};
use nyala_proto::kudu::tserver::{ScanRequestPb, ScanResponsePb};

use super::{Client, TABLET_SERVICE};

/// Name of the task that closes a scanner.
pub const CLOSE_TASK: &str = "close scanner";

/// Reply to a `Scan` call, or the reason why there is none.
type ScanReply = Result<RpcResponse<ScanResponsePb>, RpcError>;

/// A scanner on a server, as requests address it.
pub struct ServerScanner {
    pub server: Proxy,
    pub id: Bytes,
    pub next_seq: u32,
}

impl ServerScanner {
    /// Closes the scanner. If the call fails, the scanner expires on the server.
    async fn close(self, client: &Client) {
        let request = ScanRequestPb {
            scanner_id: Some(self.id),
            call_seq_id: Some(self.next_seq),
            batch_size_bytes: Some(0),
            close_scanner: Some(true),
            ..Default::default()
        };
        let until = client.attempt_deadline(client.deadline());
        let _: ScanReply =
            self.server.call(TABLET_SERVICE, "Scan", &request, until, CallOptions::default()).await;
    }

    /// Closes the scanner in a task of its own.
    pub fn close_in_background(self, client: Client) {
        client.env().clone().spawn(CLOSE_TASK, async move { self.close(&client).await });
    }
}

/// A call that opens a scanner. If it is dropped before the reply, a task waits for the reply, which alone names the
/// scanner, and closes the scanner.
pub struct OpeningCall {
    client: Client,
    server: Proxy,
    /// `None` once the reply was returned.
    call: Option<BoxFuture<'static, ScanReply>>,
}

impl OpeningCall {
    /// Prepares the call; it is sent when it is first polled.
    pub fn new(client: &Client, server: &Proxy, call: BoxFuture<'static, ScanReply>) -> OpeningCall {
        OpeningCall { client: client.clone(), server: server.clone(), call: Some(call) }
    }
}

impl Future for OpeningCall {
    type Output = ScanReply;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<ScanReply> {
        let call = self.call.as_mut().expect("not polled after its end");
        let reply = std::task::ready!(call.as_mut().poll(context));
        self.call = None;
        Poll::Ready(reply)
    }
}

impl Drop for OpeningCall {
    fn drop(&mut self) {
        let Some(call) = self.call.take() else { return };
        let (client, server) = (self.client.clone(), self.server.clone());
        client.env().clone().spawn(CLOSE_TASK, async move {
            let Ok(reply) = call.await else { return };
            if let Some(id) =
                reply.message.scanner_id.filter(|_| reply.message.has_more_results == Some(true))
            {
                ServerScanner { server, id, next_seq: 1 }.close(&client).await;
            }
        });
    }
}
