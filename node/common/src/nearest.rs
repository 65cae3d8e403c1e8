//! The known name that is nearest to a wrong one.

/// Longest name that is compared: a longer one is no typing error, and a comparison costs the product of the lengths.
const LIKELY_NAME_BYTES_MAX: usize = 256;

/// Returns the end of an error about an unknown name: the nearest known one.
pub fn did_you_mean<'a>(names: impl Iterator<Item = &'a str>, name: &str) -> String {
    if name.len() > LIKELY_NAME_BYTES_MAX {
        return String::new();
    }
    let likeness = |known: &str| strsim::jaro_winkler(known, name);
    let near = names.max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    near.map_or(String::new(), |near| format!("; did you mean {near:?}?"))
}
