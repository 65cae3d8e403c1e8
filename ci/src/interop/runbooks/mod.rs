//! The runbooks, followed word for word: a failure is made, the blocks of its section are run, and all is well again.
//!
//! ```text
//!   page.rs      sections and blocks of node/RUNBOOKS.md     site.rs      3 masters, 5 tablet servers; the shell
//!   failures.rs  the failure that belongs to each section    machines.rs  a server's machine; ssh and systemctl
//! ```

mod failures;
mod machines;
mod page;
mod site;

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::daemon::ServerKind;
use crate::steps::Steps;
use failures::FAILURES;
use page::Runbook;
use site::Site;

/// Follows every runbook on one cluster, each as a step.
pub(super) fn run(root: &Path, target: &Path, server: &ServerKind, steps: &mut Steps) {
    let mut prepared = None;
    steps.run("runbooks: the page and a cluster", || {
        let ServerKind::Nyala(program) = server else {
            anyhow::bail!("runbooks are nyala's: give no other server");
        };
        let books = books(root)?;
        let dir = tempfile::tempdir_in(target)?;
        let site = Site::start(program, dir.path())?;
        prepared = Some((books, site, dir));
        Ok(())
    });
    let Some((books, mut site, dir)) = prepared else { return };
    let mut failed = false;
    for book in &books {
        steps.run(&format!("runbook: {}", book.title), || {
            let followed = follow(&mut site, book);
            failed |= followed.is_err();
            followed
        });
    }
    if failed {
        eprintln!("what the servers left is in {}", dir.keep().display());
    }
}

/// Returns the page's runbooks; each must have a failure, and each failure a runbook.
fn books(root: &Path) -> Result<Vec<Runbook>> {
    let page = std::fs::read_to_string(root.join("node/RUNBOOKS.md")).context("reading node/RUNBOOKS.md")?;
    let books = page::runbooks(&page);
    let titles: Vec<&str> = books.iter().map(|book| book.title.as_str()).collect();
    let failures: Vec<&str> = FAILURES.iter().map(|failure| failure.title).collect();
    ensure!(titles == failures, "the page has {titles:?}, the failures are {failures:?}");
    Ok(books)
}

fn follow(site: &mut Site, book: &Runbook) -> Result<()> {
    let failure = FAILURES.iter().find(|failure| failure.title == book.title).context("it was checked")?;
    let made = (failure.make)(site).context("making the failure")?;
    if !made {
        return Ok(());
    }
    site.follow(book)?;
    (failure.after)(site)?;
    site.check()
}
