//! Which headers of a request are not for others to set.

/// Headers that frame the request, that we set ourselves, or that clouds and proxies trust.
pub fn is_forbidden(name: &str) -> bool {
    FORBIDDEN.contains(&name) || FORBIDDEN_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Headers whose values are credentials, by all that their names tell.
pub fn is_sensitive(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    // Rather one too many: who set it knows what it is.
    SENSITIVE_PARTS.iter().any(|part| name.contains(part))
}

const FORBIDDEN: [&str; 18] = [
    "accept-encoding",
    "connection",
    "date",
    "expect",
    "forwarded",
    "host",
    "http2-settings",
    "keep-alive",
    "range",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
];

const FORBIDDEN_PREFIXES: [&str; 8] =
    ["content-", "postrider-", "proxy-", "svix-", "webhook-", "x-amz-", "x-google-", "x-svix-"];

const SENSITIVE_PARTS: [&str; 11] =
    ["auth", "token", "secret", "pass", "key", "cookie", "credential", "assertion", "session", "jwt", "signature"];
