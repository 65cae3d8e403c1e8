//! Table of a server's pages, filled by the owners of their content.

use engine::sync::{Mutex, MutexGuard};
use std::sync::Arc;

use engine::ids::Uuid;
use nyala_common::env::BoxFuture;

use super::options::PageOptions;
use super::page::{PageBlock, Severity, WebPage};

/// Content of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum PageBody {
    Page(Box<WebPage>),
    /// An object that programs read, in a form of its own.
    Json(serde_json::Value),
    /// A file of this content type.
    File(&'static str, Vec<u8>),
}

impl From<WebPage> for PageBody {
    fn from(page: WebPage) -> PageBody {
        PageBody::Page(Box::new(page))
    }
}

/// Reason that there is no page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageErrorKind {
    BadRequest,
    /// The page is switched off.
    Forbidden,
    NotFound,
    /// The server does not have the content yet.
    NotReady,
}

/// Error of a page, with a line for the reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageError {
    pub kind: PageErrorKind,
    pub message: String,
}

impl PageError {
    pub fn new(kind: PageErrorKind, message: impl Into<String>) -> PageError {
        PageError { kind, message: message.into() }
    }
}

pub type PageResult = Result<PageBody, PageError>;

/// Source of a page's content.
pub type PageSource = Arc<dyn Fn(PageOptions) -> BoxFuture<'static, PageResult> + Send + Sync>;

/// An owner's part of the overview: what is wrong, and blocks.
#[derive(Debug, Default)]
pub struct OverviewPart {
    /// Findings with the page that explains them.
    pub findings: Vec<(Severity, String)>,
    pub blocks: Vec<PageBlock>,
}

/// Source of an owner's part of the overview.
pub type OverviewSource = Arc<dyn Fn() -> BoxFuture<'static, OverviewPart> + Send + Sync>;

struct RegisteredPage {
    path: &'static str,
    /// Name in the menu; pages of one table or tablet have none.
    name: Option<&'static str>,
    source: PageSource,
}

/// Pages of a server besides those that every server has.
#[derive(Default)]
pub struct PageRegistry {
    pages: Mutex<Vec<RegisteredPage>>,
    overview: Mutex<Vec<OverviewSource>>,
    /// Further links of the menu: path with query, and name.
    links: Mutex<Vec<(&'static str, &'static str)>>,
}

impl PageRegistry {
    fn pages(&self) -> MutexGuard<'_, Vec<RegisteredPage>> {
        self.pages.lock()
    }

    fn links(&self) -> MutexGuard<'_, Vec<(&'static str, &'static str)>> {
        self.links.lock()
    }

    fn overview_sources(&self) -> MutexGuard<'_, Vec<OverviewSource>> {
        self.overview.lock()
    }

    /// Adds a page; `name` is its name in the menu. A path that ends in `/<id>` stands for all paths with one more part
    /// in that place, which the page gets as its parameter `id`.
    pub fn register(&self, path: &'static str, name: Option<&'static str>, source: PageSource) {
        self.pages().push(RegisteredPage { path, name, source });
    }

    /// Adds a link to a form of a page to the menu.
    pub fn add_to_menu(&self, path: &'static str, name: &'static str) {
        self.links().push((path, name));
    }

    /// Adds a part of the overview.
    pub fn register_overview(&self, source: OverviewSource) {
        self.overview_sources().push(source);
    }

    /// Returns the source of the page at a path.
    pub fn source(&self, path: &str) -> Option<PageSource> {
        let pages = self.pages();
        if let Some(page) = pages.iter().find(|page| page.path == path) {
            return Some(page.source.clone());
        }
        let (front, id) = path.rsplit_once('/')?;
        let page = pages.iter().find(|page| page.path.strip_suffix("/<id>") == Some(front))?;
        let (source, id) = (page.source.clone(), id.to_owned());
        Some(Arc::new(move |mut options| {
            // Before any other parameter of this name, which it overrides.
            options.params.insert(0, ("id".to_owned(), id.clone()));
            source(options)
        }))
    }

    /// Returns path and name of the pages in the menu.
    pub fn menu(&self) -> Vec<(&'static str, &'static str)> {
        let mut menu: Vec<_> = self.pages().iter().filter_map(|page| Some((page.path, page.name?))).collect();
        menu.extend(self.links().iter());
        menu
    }

    /// Returns the parts of the overview, in the order of registration.
    pub async fn overview(&self) -> Vec<OverviewPart> {
        let sources = self.overview_sources().clone();
        let mut parts = Vec::new();
        for source in sources {
            parts.push(source().await);
        }
        parts
    }
}

/// Returns the id that a page needs: 32 hex digits.
pub fn required_id(options: &PageOptions) -> Result<Uuid, PageError> {
    let given = options.param("id").ok_or_else(|| {
        PageError::new(PageErrorKind::BadRequest, "id: missing; follow a link of a list, or give ?id=")
    })?;
    Uuid::parse(given.as_bytes())
        .map_err(|_| PageError::new(PageErrorKind::BadRequest, format!("id: not 32 hex digits ({given:?})")))
}
