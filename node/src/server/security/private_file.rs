//! Permissions of files with secrets.

use crate::server::flags::Flags;
use nyala_common::env::Env;

/// Permission that lets every user of the machine read a file.
const WORLD_READABLE: u32 = 0o004;

/// Logs a warning of a file with a secret that every user of this machine can read, unless
/// `allow_world_readable_credentials` is set. `setting` is the flag that names the file. Clusters exist whose keys have
/// such modes, so that a refusal would keep their servers down after an upgrade.
pub(crate) fn warn_if_public(env: &Env, flags: &Flags, setting: &str, path: &str) {
    if let Some(warning) = warning(env, flags, setting, path) {
        tracing::warn!("{warning}");
    }
}

fn warning(env: &Env, flags: &Flags, setting: &str, path: &str) -> Option<String> {
    // The reader of the file reports that it does not exist.
    let mode = env.disks.file_mode(path).ok()??;
    let is_public = mode & WORLD_READABLE != 0 && !flags.bool("allow_world_readable_credentials");
    is_public.then(|| {
        format!("{setting}: {path} can be read by every user (mode {mode:o}); change that with chmod 600")
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use nyala_common::env::os::{OsEnv, OsOptions};

    #[tokio::test]
    async fn a_secret_that_every_user_can_read_is_reported() {
        let env = OsEnv::new(&OsOptions::default()).expect("this machine");
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let path = file.path().to_str().expect("UTF-8");
        let flags = Flags::new();
        let check = |mode: u32| {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(path, permissions).expect("the test owns the file");
            warning(&env, &flags, "jwks_file_path", path)
        };
        for private in [0o600, 0o640, 0o400] {
            assert_eq!(check(private), None);
        }
        let warning = format!(
            "jwks_file_path: {path} can be read by every user (mode 644); change that with chmod 600"
        );
        assert_eq!(check(0o644), Some(warning));
        flags.set("allow_world_readable_credentials", "true").expect("a flag");
        assert_eq!(check(0o644), None);
    }
}
