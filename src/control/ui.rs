//! `/ui`: what the API says of a node as pictures, for an operator's browser.
//!
//! The page is text in the binary. It asks the same endpoints as everybody else and knows nothing that they do not say
//! (`ui/fields.js` lists what it reads of them), loads nothing from elsewhere, and is told by its headers to try neither.

use axum::Router;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use axum::response::IntoResponse;
use axum::routing::get;

/// A file of the page.
struct Asset {
    path: &'static str,
    content_type: &'static str,
    text: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const ICON: &str = "image/svg+xml";

macro_rules! asset {
    ($path:literal, $file:literal, $content_type:expr) => {
        Asset { path: $path, content_type: $content_type, text: include_str!(concat!("ui/", $file)) }
    };
}

static ASSETS: [Asset; 11] = [
    asset!("/ui", "index.html", HTML),
    asset!("/ui/style.css", "style.css", CSS),
    asset!("/ui/icon.svg", "icon.svg", ICON),
    asset!("/ui/app.js", "app.js", SCRIPT),
    asset!("/ui/fields.js", "fields.js", SCRIPT),
    asset!("/ui/reading.js", "reading.js", SCRIPT),
    asset!("/ui/words.js", "words.js", SCRIPT),
    asset!("/ui/paint.js", "paint.js", SCRIPT),
    asset!("/ui/node.js", "node.js", SCRIPT),
    asset!("/ui/peers.js", "peers.js", SCRIPT),
    asset!("/ui/streams.js", "streams.js", SCRIPT),
];

/// Scripts, style, picture and questions are of this node alone; no script stands in the markup, and none makes markup
/// of text.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

/// The routes of the page and of what it consists of.
pub(super) fn pages<S: Clone + Send + Sync + 'static>() -> Router<S> {
    ASSETS.iter().fold(Router::new(), |router, asset| {
        let headers = [
            (CONTENT_TYPE, asset.content_type),
            (CONTENT_SECURITY_POLICY, POLICY),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (REFERRER_POLICY, "no-referrer"),
        ];
        router.route(asset.path, get(move || async move { (headers, asset.text).into_response() }))
    })
}

#[cfg(test)]
mod tests;
