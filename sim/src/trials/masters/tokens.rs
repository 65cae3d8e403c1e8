//! A client that has only a token, and presents it to any master: a valid one is accepted, no other is.

use std::sync::Arc;
use std::time::Duration;

use engine::sync::Mutex;
use nyala_common::env::Env;
use nyala_common::rpc::client::{CallOptions, Proxy, RpcError, RpcResponse};
use nyala_common::security::token::seconds;
use nyala_common::security::{ClientSecurity, ClientSecurityOptions, RpcCaller, TlsCredentials, TlsSettings};
use nyala_proto::kudu::master::{GetMasterRegistrationRequestPb, GetMasterRegistrationResponsePb};
use nyala_proto::kudu::security::SignedTokenPb;

use super::settings::{CALL, MASTERS, SECURITY, SETTLED, master_address};
use super::state::State;
use crate::wire::client::MASTER;
use crate::world::ProgramResult;

const PAUSE: Duration = Duration::from_millis(350);
/// Percentage of tokens that are changed after they were signed.
const FORGED: u64 = 8;

/// A token that is presented.
struct Presented {
    token: SignedTokenPb,
    expires: i64,
    forged: bool,
    to: usize,
    authorities: Vec<Vec<u8>>,
    /// True if the master must know its key.
    knows_key: bool,
}

pub(super) async fn run(env: Env, state: Arc<Mutex<State>>) -> ProgramResult {
    loop {
        if state.lock().is_over() {
            return Ok(());
        }
        env.sleep(PAUSE).await;
        let Some(presented) = draw(&env, &mut state.lock()) else { continue };
        let begun = seconds(env.now().wall);
        let reply = present(&env, &presented).await;
        let told = match &reply {
            Ok(_) => "accepted".to_string(),
            Err(error) => error.to_string(),
        };
        let now = seconds(env.now().wall);
        let left = presented.expires - now;
        let (to, forged) = (presented.to, presented.forged);
        let what = format!("a token, forged: {forged}, valid for {left} s, at master {to}: {told}");
        let mut state = state.lock();
        // Another fault may have begun meanwhile.
        let knows_key = presented.knows_key && state.masters[to].is_settled(env.now().mono);
        let is_right = match reply {
            Ok(_) => !forged && begun <= presented.expires,
            Err(_) => forged || now >= presented.expires || !knows_key,
        };
        state.note(what.clone());
        if !is_right {
            state.report(what);
        }
    }
}

fn draw(env: &Env, state: &mut State) -> Option<Presented> {
    let count = state.tokens.len() as u64;
    if count == 0 {
        return None;
    }
    let of = &state.tokens[state.random.below(count) as usize];
    let (mut token, expires) = (of.token.clone(), of.expires);
    let (forged, to) = (state.random.percent(FORGED), state.random.below(MASTERS as u64) as usize);
    if forged {
        let mut data = token.token_data.unwrap_or_default().to_vec();
        // The last field is that of the user: its last byte is a letter of the name.
        data.last_mut().into_iter().for_each(|byte| *byte ^= 1);
        token.token_data = Some(data.into());
    }
    let of = &state.masters[to];
    // A key signs once it is as old as the rotation, and masters read keys twice as often.
    let longest = of.disturbed_until.after(SETTLED + SECURITY.rotation);
    let knows_key = of.is_settled(env.now().mono) && env.now().mono > longest;
    let authorities = state.authorities.clone();
    Some(Presented { token, expires, forged, to, authorities, knows_key })
}

async fn present(
    env: &Env,
    presented: &Presented,
) -> Result<RpcResponse<GetMasterRegistrationResponsePb>, RpcError> {
    let tls =
        TlsCredentials::new(env, TlsSettings::default()).expect("a client without certificates has TLS");
    for der in &presented.authorities {
        tls.trust(der.clone()).expect("masters give out certificates");
    }
    let options = ClientSecurityOptions { require_authentication: true, ..Default::default() };
    let security = ClientSecurity::new(tls, options);
    security.set_token(presented.token.clone());
    let caller = RpcCaller::secure("operator", Arc::new(security));
    let proxy = Proxy::new(env.clone(), master_address(presented.to), &caller);
    let deadline = env.now().mono.after(CALL);
    let request = GetMasterRegistrationRequestPb {};
    proxy.call(MASTER, "GetMasterRegistration", &request, deadline, CallOptions::default()).await
}
