//! Kerberos of the real world: MIT's library, through GSSAPI.
//!
//! - The library's caches and keytabs are named by call, never by variables of the environment: a process may have
//!   servers with several keytabs.
//! - Tickets of a keytab are kept in memory. The library renews them when a context begins after half of their life.
//! - Replays are not remembered on disk: the nonce of the negotiation makes them useless.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "this file is the real world")]

use std::ffi::CString;
use std::os::unix::fs::PermissionsExt;
use std::ptr;

use engine::sync::Mutex;
use libgssapi::context::{ClientCtx, CtxFlags, SecurityContext, ServerCtx};
use libgssapi::credential::{Cred, CredUsage};
use libgssapi::error::{Error, MajorFlags};
use libgssapi::name::Name;
use libgssapi::oid::{
    GSS_MECH_KRB5, GSS_MECH_SPNEGO, GSS_NT_HOSTBASED_SERVICE, GSS_NT_KRB5_PRINCIPAL, OidSet,
};
use libgssapi::util::Buf;
use libgssapi_sys as sys;

use super::kerberos::{Kerberos, KerberosContext, KerberosCredentials, KerberosStep};

/// MIT Kerberos.
pub(super) struct OsKerberos;

/// Held while the tickets of a keytab are got or renewed: another thread would find an empty cache meanwhile.
static RENEWING: Mutex<()> = Mutex::new(());
/// Permissions that let every user read a file.
const WORLD_READABLE: u32 = 0o004;

impl Kerberos for OsKerberos {
    fn check_keytab(&self, file: &str, principal: &str, world_readable: bool) -> Result<String, String> {
        let metadata = std::fs::metadata(file).map_err(|error| format!("read {file}: {error}"))?;
        if !world_readable && metadata.permissions().mode() & WORLD_READABLE != 0 {
            return Err(format!(
                "{file} can be read by every user (mode {:o}); change that with chmod 600",
                metadata.permissions().mode() & 0o7777
            ));
        }
        std::fs::File::open(file).map_err(|error| format!("read {file}: {error}"))?;
        if principal.is_empty() {
            return keytab_keys(file, None)
                .map(|_| String::new())
                .map_err(|error| format!("{file} has no usable key: {}", text(error)));
        }
        let principal = with_host(principal)?;
        let name = principal_name(&principal)?;
        keytab_keys(file, Some(&principal))
            .map_err(|error| format!("{file} has no key of {principal}: {}", text(error)))?;
        let full =
            name.canonicalize(Some(GSS_MECH_KRB5)).and_then(|name| name.display_name()).map_err(text)?;
        Ok(String::from_utf8_lossy(&full).into_owned())
    }

    fn initiate(
        &self,
        credentials: &KerberosCredentials,
        service: &str,
        host: &str,
    ) -> Result<Box<dyn KerberosContext>, String> {
        let credentials = match credentials {
            KerberosCredentials::Cache => {
                Cred::acquire(None, None, CredUsage::Initiate, Some(&mechanisms()?)).map_err(text)?
            }
            KerberosCredentials::Keytab { file, principal } => {
                let cache = format!("MEMORY:nyala {principal}");
                let store = [("client_keytab", format!("FILE:{file}")), ("ccache", cache)];
                let _renewing = RENEWING.lock();
                acquire(Some(principal), sys::GSS_C_INITIATE, &store, &[&GSS_MECH_KRB5]).map_err(text)?
            }
        };
        // Only this finds out whether the cache has a ticket that is still valid.
        if credentials.lifetime().map_err(text)?.is_zero() {
            return Err("the ticket has expired".to_string());
        }
        let target = format!("{service}@{host}");
        let name = Name::new(target.as_bytes(), Some(GSS_NT_HOSTBASED_SERVICE)).map_err(text)?;
        let flags = CtxFlags::GSS_C_MUTUAL_FLAG
            | CtxFlags::GSS_C_INTEG_FLAG
            | CtxFlags::GSS_C_CONF_FLAG
            | CtxFlags::GSS_C_SEQUENCE_FLAG
            | CtxFlags::GSS_C_REPLAY_FLAG;
        Ok(client_context(ClientCtx::new(Some(credentials), name, flags, Some(GSS_MECH_KRB5))))
    }

    fn accept(&self, keytab: &str) -> Result<Box<dyn KerberosContext>, String> {
        let keys =
            keytab_keys(keytab, None).map_err(|error| format!("{keytab} is not usable: {}", text(error)))?;
        Ok(server_context(ServerCtx::new(Some(keys))))
    }

    fn accept_web(&self, keytab: &str) -> Result<Box<dyn KerberosContext>, String> {
        let unusable = |error| format!("{keytab} is not usable: {}", text(error));
        let keys =
            acquire(None, sys::GSS_C_ACCEPT, &keytab_store(keytab), &[&GSS_MECH_KRB5, &GSS_MECH_SPNEGO]);
        let context = ServerCtx::new(Some(keys.map_err(unusable)?));
        let step = |context: &mut ServerCtx, token: &[u8]| context.step(token, None);
        // Nothing is wrapped with the context: TLS protects the requests.
        Ok(Box::new(OsContext { context, step, needs: CtxFlags::empty() }))
    }

    fn local_name(&self, principal: &str) -> Option<String> {
        let local = principal_name(principal).ok()?.local_name(Some(GSS_MECH_KRB5)).ok()?;
        String::from_utf8(local.to_vec()).ok().filter(|name| !name.is_empty())
    }
}

/// Returns a principal with this host's name instead of `_HOST`.
fn with_host(principal: &str) -> Result<String, String> {
    let Some((service, rest)) = principal.split_once("/_HOST") else { return Ok(principal.to_string()) };
    let own = Name::new(service.as_bytes(), Some(GSS_NT_HOSTBASED_SERVICE))
        .and_then(|name| name.canonicalize(Some(GSS_MECH_KRB5)))
        .and_then(|name| name.display_name())
        .map_err(|error| format!("the name of this host is not known: {}", text(error)))?;
    let own = String::from_utf8_lossy(&own).into_owned();
    let host = own.split_once('/').map_or("", |(_, host)| host).split('@').next().unwrap_or_default();
    Ok(format!("{service}/{}{rest}", host.to_lowercase()))
}

fn principal_name(principal: &str) -> Result<Name, String> {
    Name::new(principal.as_bytes(), Some(GSS_NT_KRB5_PRINCIPAL)).map_err(text)
}

fn mechanisms() -> Result<OidSet, String> {
    OidSet::singleton(GSS_MECH_KRB5).map_err(text)
}

/// Returns the keys of a principal in a keytab, or those of all its principals.
fn keytab_keys(file: &str, principal: Option<&str>) -> Result<Cred, Error> {
    acquire(principal, sys::GSS_C_ACCEPT, &keytab_store(file), &[&GSS_MECH_KRB5])
}

fn keytab_store(file: &str) -> [(&'static str, String); 2] {
    [("keytab", format!("FILE:{file}")), ("rcache", "none:".to_string())]
}

/// Gets credentials of these mechanisms from named places.
fn acquire(
    principal: Option<&str>,
    usage: u32,
    store: &[(&str, String)],
    mechanisms: &[&[u8]],
) -> Result<Cred, Error> {
    let text = |text: &str| CString::new(text).map_err(|_| UNREADABLE);
    let texts: Result<Vec<_>, Error> =
        store.iter().map(|(key, value)| Ok((text(key)?, text(value)?))).collect();
    let texts = texts?;
    let element = |(key, value): &(CString, CString)| sys::gss_key_value_element_desc {
        key: key.as_ptr(),
        value: value.as_ptr(),
    };
    let mut elements: Vec<_> = texts.iter().map(element).collect();
    let store = sys::gss_key_value_set_desc {
        count: u32::try_from(elements.len()).map_err(|_| UNREADABLE)?,
        elements: elements.as_mut_ptr(),
    };
    let name = principal.map(RawName::of).transpose()?;
    let mut oids = Vec::new();
    for mechanism in mechanisms {
        let length = u32::try_from(mechanism.len()).map_err(|_| UNREADABLE)?;
        oids.push(sys::gss_OID_desc { length, elements: mechanism.as_ptr().cast_mut().cast() });
    }
    let mut mechanisms = sys::gss_OID_set_desc { count: oids.len(), elements: oids.as_mut_ptr() };
    let (mut minor, mut credentials) = (0, ptr::null_mut());
    // SAFETY: every pointer is null where the interface allows it, or that of a value that lives through the call. The
    // library does not write to names, mechanisms and the places.
    let major = unsafe {
        sys::gss_acquire_cred_from(
            &mut minor,
            name.as_ref().map_or(ptr::null_mut(), |name| name.0),
            sys::_GSS_C_INDEFINITE,
            &mut mechanisms,
            usage as sys::gss_cred_usage_t,
            &store,
            &mut credentials,
            ptr::null_mut(),
            ptr::null_mut(),
        )
    };
    match major == sys::GSS_S_COMPLETE {
        // SAFETY: the call succeeded, and nothing else has these credentials.
        true => Ok(unsafe { Cred::from_c(credentials) }),
        false => Err(Error { major: MajorFlags::from_bits_retain(major), minor }),
    }
}

/// Failure before a call of the library.
const UNREADABLE: Error = Error { major: MajorFlags::GSS_S_CALL_INACCESSIBLE_READ, minor: 0 };

/// A principal's name in the library's form, for the one call that the safe interface lacks.
struct RawName(sys::gss_name_t);

impl RawName {
    fn of(principal: &str) -> Result<RawName, Error> {
        let mut bytes =
            sys::gss_buffer_desc { length: principal.len(), value: principal.as_ptr().cast_mut().cast() };
        let mut kind = sys::gss_OID_desc {
            length: u32::try_from(GSS_NT_KRB5_PRINCIPAL.len()).map_err(|_| UNREADABLE)?,
            elements: GSS_NT_KRB5_PRINCIPAL.as_ptr().cast_mut().cast(),
        };
        let (mut minor, mut name) = (0, ptr::null_mut());
        // SAFETY: the pointers are those of values that live through the call, which only reads the first two.
        let major = unsafe { sys::gss_import_name(&mut minor, &mut bytes, &mut kind, &mut name) };
        match major == sys::GSS_S_COMPLETE {
            true => Ok(RawName(name)),
            false => Err(Error { major: MajorFlags::from_bits_retain(major), minor }),
        }
    }
}

impl Drop for RawName {
    fn drop(&mut self) {
        let mut minor = 0;
        // SAFETY: the name is valid, and this value is its only owner.
        let _status = unsafe { sys::gss_release_name(&mut minor, &mut self.0) };
    }
}

/// Returns the library's text of an error, in one line.
fn text(error: Error) -> String {
    error.to_string().trim().replace('\n', " ")
}

/// Protections that both sides demand.
const INTEGRITY: CtxFlags = CtxFlags::GSS_C_INTEG_FLAG;

/// A context of the library, with the step of its side. The rest is the same on both.
struct OsContext<C> {
    context: C,
    step: fn(&mut C, &[u8]) -> Result<Option<Buf>, Error>,
    /// Protections that this side demands.
    needs: CtxFlags,
}

fn client_context(context: ClientCtx) -> Box<dyn KerberosContext> {
    let step =
        |context: &mut ClientCtx, token: &[u8]| context.step((!token.is_empty()).then_some(token), None);
    Box::new(OsContext { context, step, needs: INTEGRITY | CtxFlags::GSS_C_MUTUAL_FLAG })
}

fn server_context(context: ServerCtx) -> Box<dyn KerberosContext> {
    Box::new(OsContext { context, step: |context, token| context.step(token, None), needs: INTEGRITY })
}

impl<C: SecurityContext + Send> KerberosContext for OsContext<C> {
    fn step(&mut self, token: &[u8]) -> Result<KerberosStep, String> {
        let next = (self.step)(&mut self.context, token).map_err(text)?;
        finish(next.map(|bytes| bytes.to_vec()), &self.context, self.needs)
    }

    fn wrap(&mut self, message: &[u8]) -> Result<Vec<u8>, String> {
        self.context.wrap(false, message).map(|bytes| bytes.to_vec()).map_err(text)
    }

    fn unwrap(&mut self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        self.context.unwrap(bytes).map(|bytes| bytes.to_vec()).map_err(text)
    }

    fn client(&self) -> Result<String, String> {
        client_name(&self.context)
    }
}

fn finish(
    token: Option<Vec<u8>>,
    context: &impl SecurityContext,
    needs: CtxFlags,
) -> Result<KerberosStep, String> {
    let complete = context.is_complete();
    if complete && !context.flags().map_err(text)?.contains(needs) {
        return Err("the peer does not protect messages against changes".to_string());
    }
    Ok(KerberosStep { token: token.unwrap_or_default(), complete })
}

fn client_name(context: &impl SecurityContext) -> Result<String, String> {
    let name = context.source_name().and_then(|name| name.display_name()).map_err(text)?;
    String::from_utf8(name.to_vec()).map_err(|_| "the client's name is not text".to_string())
}
