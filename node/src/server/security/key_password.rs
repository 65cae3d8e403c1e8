//! Password of a private key, which a command prints.

use engine::error::{Error, Result};

use crate::server::flags::Flags;
use nyala_common::env::Env;
use nyala_common::security::SecretText;

/// Runs the command in the flag `name`, if there is one: a program and its arguments, separated by spaces. Its output
/// without trailing blanks is the password. What it prints appears in no error.
pub(crate) fn key_password(env: &Env, flags: &Flags, name: &str) -> Result<Option<SecretText>> {
    let command = flags.text(name);
    let mut words = command.split_whitespace().map(str::to_string);
    let Some(program) = words.next() else { return Ok(None) };
    let arguments: Vec<String> = words.collect();
    let fault = |fault: &str| {
        Error::invalid(format!(
            "{name}: the command {fault} ({program}); run it as the servers' user to see why"
        ))
    };
    let output = env.disks.program_output(&program, &arguments);
    let output = zeroize::Zeroizing::new(output.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => fault("does not exist"),
        _ => fault("failed"),
    })?);
    let text = std::str::from_utf8(&output).map_err(|_| fault("printed no text"))?.trim_end();
    if text.is_empty() { Err(fault("printed nothing")) } else { Ok(Some(SecretText::new(text.to_string()))) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nyala_common::env::os::{OsEnv, OsOptions};

    #[tokio::test]
    async fn the_output_is_the_password_and_stays_secret() {
        let env = OsEnv::new(&OsOptions::default()).expect("this machine");
        let password = |command: &str| {
            let flags = Flags::new();
            flags.set("rpc_private_key_password_cmd", command).expect("a flag");
            key_password(&env, &flags, "rpc_private_key_password_cmd")
        };
        assert!(password("").expect("no command").is_none());
        let printed = password("printf sesame%s\\n\\n -open").expect("it prints").expect("a password");
        assert_eq!(printed.expose(), "sesame-open");
        assert_eq!(format!("{printed:?}"), "SecretText(redacted)");
        for (command, fault) in [
            ("false", "the command failed (false)"),
            ("true", "the command printed nothing (true)"),
            ("/no/such/program secret", "the command does not exist (/no/such/program)"),
            ("ls /no/such/secret", "the command failed (ls)"),
        ] {
            let error = password(command).expect_err("no password").message;
            assert!(error.contains(fault) && !error.contains("secret"), "{error}");
        }
    }
}
