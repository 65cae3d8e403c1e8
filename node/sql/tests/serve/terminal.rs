//! The shell in a pseudo terminal: Ctrl-C cancels a statement, also on the servers.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Arc, Condvar, Mutex};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::bed::{Bed, block_on, open_scanners, until};

/// Keys, as a terminal sends them.
const CTRL_C: &[u8] = b"\x03";
const CTRL_D: &[u8] = b"\x04";

/// Text that a program has printed, and true when it has ended.
type Printed = Arc<(Mutex<(String, bool)>, Condvar)>;

/// A program in a pseudo terminal.
struct Terminal {
    child: Child,
    keyboard: File,
    printed: Printed,
}

impl Terminal {
    /// Starts a program, as the leader of a session whose terminal is a new one.
    fn start(program: &str, arguments: &[&str], home: &Path) -> Terminal {
        let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo terminal");
        grantpt(&keyboard).expect("a pseudo terminal");
        unlockpt(&keyboard).expect("a pseudo terminal");
        let name = ptsname(&keyboard, Vec::new()).expect("a name").into_string().expect("UTF-8");
        let line = File::options().read(true).write(true).open(name).expect("the other side");
        let copy = || line.try_clone().expect("a descriptor");
        let child = Command::new("setsid")
            .args(["--ctty", program])
            .args(arguments)
            .env("HOME", home)
            .env("TERM", "xterm")
            .stdin(copy())
            .stdout(copy())
            .stderr(copy())
            .spawn()
            .expect("setsid (util-linux) starts");
        let keyboard = File::from(keyboard);
        let mut screen = keyboard.try_clone().expect("a descriptor");
        let printed = Printed::default();
        let collected = printed.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // It fails when the program has ended.
            while let Ok(read @ 1..) = screen.read(&mut buffer) {
                let mut text = collected.0.lock().expect("no panic");
                text.0.push_str(&String::from_utf8_lossy(&buffer[..read]));
                collected.1.notify_all();
            }
            collected.0.lock().expect("no panic").1 = true;
            collected.1.notify_all();
        });
        Terminal { child, keyboard, printed }
    }

    fn press(&mut self, keys: &[u8]) {
        self.keyboard.write_all(keys).expect("a terminal");
    }

    /// Returns what a program that has ended printed since the last text that was waited for.
    fn rest(&self) -> String {
        let mut printed = self.printed.0.lock().expect("no panic");
        while !printed.1 {
            printed = self.printed.1.wait(printed).expect("no panic");
        }
        std::mem::take(&mut printed.0)
    }

    /// Waits until the program has printed `text`, and forgets what it has printed so far.
    fn wait_for(&self, text: &str) {
        let mut printed = self.printed.0.lock().expect("no panic");
        loop {
            if let Some(at) = printed.0.find(text) {
                printed.0.drain(..at + text.len());
                return;
            }
            assert!(!printed.1, "the program has ended without {text:?}: {}", printed.0);
            printed = self.printed.1.wait(printed).expect("no panic");
        }
    }
}

#[test]
fn ctrl_c_cancels_a_statement_of_the_shell_on_the_servers() {
    block_on(async {
        let bed = Bed::start().await;
        bed.fill_big().await;
        let home = tempfile::tempdir().expect("a temporary directory");
        let masters = bed.cluster.master_addresses().join(",");
        let program = env!("CARGO_BIN_EXE_nyala-sql");
        let mut shell = Terminal::start(program, &["--master", &masters], home.path());
        shell.wait_for("nyala> ");
        // All pairs of rows: it runs for hours, while scanners of one side are open.
        shell.press(b"SELECT COUNT(*) FROM big a JOIN big b ON a.pad = b.pad;\r");
        until(&bed, "the statement has scanners", |open| open > 0).await;
        shell.press(CTRL_C);
        shell.wait_for("cancelled");
        until(&bed, "the scanners of a cancelled statement are closed", |open| open == 0).await;
        // The shell continues.
        shell.wait_for("nyala> ");
        shell.press(b"SELECT 40 + 2 AS answer;\r");
        shell.wait_for("| 42 ");
        shell.wait_for("nyala> ");
        shell.press(CTRL_D);
        let status = shell.child.wait().expect("the program ends");
        assert!(status.success(), "{status}; printed at last: {}", shell.rest());
        assert_eq!(open_scanners(&bed).await, 0);
        bed.stop().await;
    });
}
