//! The table of a service's methods: one row gives a method its name, its properties and its handler.

/// Defines the methods of a service in one table, as the static slice `$methods` and the function `$dispatch`.
///
/// ```text
/// service_methods! {
///     fn dispatch(server: TabletServerService, call) of METHODS;
///     "Ping" { role: MethodRole::ClientOrService, audited: false, tracked: false, required: &[] } =>
///         Reply::message(&pong),
///     "Write" { role: MethodRole::Client, audited: false, tracked: true, required: &[1] } =>
///         write(server, call).await,
/// }
/// ```
///
/// The braces hold the other fields of [`MethodInfo`](crate::rpc::MethodInfo), all of them: a new property has no
/// default that a row could get by being forgotten. The handler is an asynchronous expression over a reference to the
/// service and the owned call. It ends with the reply; `?` ends it early with another one.
///
/// Invariant: a method that is listed runs its own handler. A row without a handler does not compile, and neither does
/// a second row of the same name (an unreachable pattern).
#[macro_export]
macro_rules! service_methods {
    (
        fn $dispatch:ident($service:ident: $type:ty, $call:ident) of $methods:ident;
        $($name:literal { $($property:ident: $value:expr),+ $(,)? } => $handler:expr,)+
    ) => {
        static $methods: &[$crate::rpc::MethodInfo] =
            &[$($crate::rpc::MethodInfo { name: $name, $($property: $value),+ }),+];

        /// Runs the handler of the call's method.
        fn $dispatch(
            service: std::sync::Arc<$type>,
            call: $crate::rpc::Call,
        ) -> $crate::env::BoxFuture<'static, $crate::rpc::Reply> {
            #[deny(unreachable_patterns)]
            async fn handle(
                $service: &$type,
                $call: $crate::rpc::Call,
            ) -> Result<$crate::rpc::Reply, $crate::rpc::Reply> {
                Ok(match $call.method {
                    $($name => $handler,)+
                    other => return Err($crate::rpc::Reply::no_such_method(other)),
                })
            }
            Box::pin(async move { handle(&service, call).await.unwrap_or_else(|reply| reply) })
        }
    };
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::env::mem_net;
    use crate::rpc::call_steps::CallSteps;
    use crate::rpc::{Call, Reply, RpcErrorCodePb};
    use crate::security::PeerIdentity;
    use crate::security::acl::MethodRole;

    struct Counter(u64);

    crate::service_methods! {
        fn dispatch(counter: Counter, call) of METHODS;
        "Count" { role: MethodRole::Client, audited: false, tracked: false, required: &[] } =>
            Reply::message(&counter.0),
        "Add" { role: MethodRole::Client, audited: false, tracked: true, required: &[1] } =>
            Reply::message(&(counter.0 + call.decode::<u64>()?)),
    }

    async fn reply(method: &'static str, body: &'static [u8]) -> Reply {
        let env = mem_net::env();
        let received = env.now().mono;
        let call = Call {
            method,
            body: body.into(),
            sidecars: Vec::new(),
            received,
            deadline: None,
            user: "user".into(),
            peer: Arc::new(PeerIdentity::unproved("user", true)),
            remote: ([127, 0, 0, 1], 1).into(),
            request_id: None,
            required_features: Vec::new(),
            steps: Arc::new(CallSteps::new(env.clock, received, None)),
            slot: None,
            note: None,
        };
        dispatch(Arc::new(Counter(7)), call).await
    }

    #[tokio::test]
    async fn each_method_runs_its_own_handler() {
        assert_eq!(reply("Count", &[]).await, Reply::message(&7u64));
        assert_eq!(reply("Add", &[8, 2]).await, Reply::message(&9u64));
        assert_eq!(METHODS.iter().map(|method| method.name).collect::<Vec<_>>(), ["Count", "Add"]);
    }

    #[tokio::test]
    async fn a_request_that_is_no_message_ends_the_handler_early() {
        let Reply::Err { code, .. } = reply("Add", &[8]).await else { panic!("the body is truncated") };
        assert_eq!(code, RpcErrorCodePb::ErrorInvalidRequest);
    }

    #[tokio::test]
    async fn an_unlisted_method_runs_no_handler() {
        let Reply::Err { code, .. } = reply("Reset", &[]).await else { panic!("there is no such method") };
        assert_eq!(code, RpcErrorCodePb::ErrorNoSuchMethod);
    }
}
