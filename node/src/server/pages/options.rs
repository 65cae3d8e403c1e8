//! Options of a page, from the query of its address.

use nyala_common::metrics::query::decode;

/// Form of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PageFormat {
    #[default]
    Html,
    /// `?raw`, or `?format=text`.
    Text,
    /// `?format=json`.
    Json,
}

/// Options of a page. Those that a page does not use are without effect.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PageOptions {
    pub format: PageFormat,
    /// Id of the column to sort by.
    pub sort: Option<String>,
    pub descending: bool,
    /// Text that a row must contain, without regard to case.
    pub filter: String,
    /// From 1; 0 is as 1.
    pub page: usize,
    /// Seconds after which the browser loads the page again.
    pub refresh: Option<u32>,
    /// Further parameters, such as the id of a tablet.
    pub params: Vec<(String, String)>,
    /// User whom the ticket of the request names, whose rights count. Not from the query.
    pub user: Option<String>,
}

/// Seconds between two loads of a page by a browser.
const REFRESH_SECONDS: std::ops::RangeInclusive<u32> = 1..=3600;

impl PageOptions {
    /// Parses a query; `Err` has a message for the client.
    pub fn parse(query: &str) -> Result<PageOptions, String> {
        let mut options = PageOptions::default();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            options.set(&decode(name)?, decode(value)?)?;
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, value: String) -> Result<(), String> {
        match name {
            "raw" => self.format = PageFormat::Text,
            "format" => {
                self.format = match value.as_str() {
                    "html" => PageFormat::Html,
                    "text" => PageFormat::Text,
                    "json" => PageFormat::Json,
                    _ => return Err(format!("format: unknown ({value:?}, one of html, text, json)")),
                }
            }
            "sort" => self.sort = Some(value).filter(|sort| !sort.is_empty()),
            "desc" => self.descending = value != "0",
            "q" => self.filter = value,
            "page" => self.page = number("page", &value)?,
            "refresh" => {
                let seconds: u32 = number("refresh", &value)?;
                if !REFRESH_SECONDS.contains(&seconds) {
                    return Err(format!("refresh: out of range ({seconds}, 1 to 3600 seconds)"));
                }
                self.refresh = Some(seconds);
            }
            _ => self.params.push((name.to_owned(), value)),
        }
        Ok(())
    }

    /// Returns a further parameter.
    pub fn param(&self, name: &str) -> Option<&str> {
        self.params.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns the address of the same page with these options, as a relative link.
    pub fn link(&self) -> String {
        let mut parts: Vec<(&str, String)> =
            self.params.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        match self.format {
            PageFormat::Html => {}
            PageFormat::Text => parts.push(("format", "text".to_owned())),
            PageFormat::Json => parts.push(("format", "json".to_owned())),
        }
        parts.extend(self.sort.clone().map(|sort| ("sort", sort)));
        parts.extend(self.descending.then(|| ("desc", "1".to_owned())));
        parts.extend(
            Some(self.filter.clone()).filter(|filter| !filter.is_empty()).map(|filter| ("q", filter)),
        );
        parts.extend((self.page > 1).then(|| ("page", self.page.to_string())));
        parts.extend(self.refresh.map(|seconds| ("refresh", seconds.to_string())));
        let text: Vec<String> =
            parts.iter().map(|(name, value)| format!("{}={}", encode(name), encode(value))).collect();
        format!("?{}", text.join("&"))
    }
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{name}: not a number ({value:?})"))
}

/// Encodes a text for the query of an address.
pub fn encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte.into()),
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    encoded
}
