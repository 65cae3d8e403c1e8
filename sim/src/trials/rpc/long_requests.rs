//! Long requests at the end of a client's calls: several at once, more than a server has memory for while they are
//! incomplete. It closes the connections of some; `incoming_memory` checks that nothing of them stays.

use std::time::Duration;

use futures_util::future::join_all;
use nyala_common::rpc::client::{CallOptions, Proxy};

use super::caller::Caller;
use super::order::{Method, Order};
use super::service::SERVICE;
use super::settings::INCOMING_BYTES;

/// Requests of a client at once: the buffers of two are more than [`INCOMING_BYTES`].
pub(super) const LANES: usize = 3;
/// Size of each in bytes. Only requests of more than 1 MiB count.
const LONG_BYTES: usize = (INCOMING_BYTES as usize / 4) * 3;
const TIMEOUT: Duration = Duration::from_secs(4);

/// Sends a long request of each caller to a server, unless a disturbance lasts. Each caller has a connection of its
/// own.
pub(super) async fn run(callers: Vec<Caller>, server: usize) {
    let is_whole = callers.iter().all(|caller| caller.ledger.lock().is_whole());
    if is_whole {
        join_all(callers.iter().map(|caller| caller.make_long_call(server))).await;
    }
    callers.iter().flat_map(|caller| caller.proxies.iter()).for_each(Proxy::disconnect);
}

impl Caller {
    async fn make_long_call(&self, server: usize) {
        let number = self.ledger.lock().next_number();
        let order = Order { attached: vec![LONG_BYTES], ..Order::small(number) };
        let call = self.record(server, Method::Slow, order, TIMEOUT);
        self.ledger.lock().begin(&call);
        let (text, sidecars) = (call.order.to_text(), call.order.request_sidecars());
        let (proxy, options) = (&self.proxies[server], CallOptions::default());
        let name = call.method.name();
        let outcome = proxy.call_with_sidecars(SERVICE, name, &text, sidecars, call.deadline, options).await;
        self.ledger.lock().conclude_long(&call, &outcome, self.now());
    }
}
