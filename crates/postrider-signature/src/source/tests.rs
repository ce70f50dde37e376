use super::*;
use crate::{Secret, SigningKey, sign, stripe_header};
use proptest::prelude::*;

const NOW: i64 = 1_700_000_000;
const BODY: &[u8] = br#"{"paid":true}"#;

/// Verifies with these headers.
fn verify(source: &Source, headers: &[(&str, &str)], body: &[u8], now: i64) -> Result<Verified, Refusal> {
    let header = |name: &str| headers.iter().find(|(given, _)| *given == name).map(|(_, value)| *value);
    source.verify(&Received::new(&header, body), now)
}

fn key(text: &str) -> SourceKey {
    SourceKey::text(text)
}

fn verify_at(source: &Source, url: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<Verified, Refusal> {
    let header = |name: &str| headers.iter().find(|(given, _)| *given == name).map(|(_, value)| *value);
    source.verify(&Received::new(&header, body).at(url), NOW)
}

/// The example in the tests of Twilio's own libraries.
#[test]
fn twilios_own_example_is_accepted_at_its_url_only() {
    let twilio = Source::twilio([key("12345")]);
    let (url, signature) = ("https://mycompany.com/myapp.php?foo=1&bar=2", "RSOYDt4T1cUTdK1PDd93/VVr8B8=");
    let body = b"To=%2B18005551212&From=%2B14158675309&Digits=1234&CallSid=CA1234567890ABCDE&Caller=%2B14158675309";
    let headers = [("x-twilio-signature", signature), ("i-twilio-idempotency-token", "once")];
    let verified = verify_at(&twilio, url, &headers, body);
    assert_eq!(verified, Ok(Verified { id: Some("once".to_owned()), signed_at: None }));
    let refused = Err(Refusal::NoMatch { secrets: 1 });
    assert_eq!(verify_at(&twilio, "https://mycompany.com/myapp.php?foo=1", &headers, body), refused);
    assert_eq!(verify_at(&twilio, url, &headers, &body[..body.len() - 1]), refused);
    assert_eq!(verify_at(&Source::twilio([key("1234")]), url, &headers, body), refused);
    assert_eq!(verify(&twilio, &headers, body, NOW), Err(Refusal::UnknownUrl));
    let unreadable = verify_at(&twilio, url, &[("x-twilio-signature", "?")], body);
    assert!(matches!(unreadable, Err(Refusal::Unreadable { .. })), "{unreadable:?}");
}

#[test]
fn what_is_no_form_is_known_to_twilio_by_its_hash_in_the_url() {
    let hash = hex(&Sha256::digest(BODY));
    let url = format!("https://example.com/in?bodySHA256={hash}");
    let signature = STANDARD.encode(key("s").for_hash(Hash::Sha1).tag(&[url.as_bytes()]));
    let (twilio, headers) = (Source::twilio([key("s")]), [("x-twilio-signature", signature.as_str())]);
    assert!(verify_at(&twilio, &url, &headers, BODY).is_ok());
    assert_eq!(verify_at(&twilio, &url, &headers, b"{}"), Err(Refusal::NoMatch { secrets: 1 }));
}

#[test]
fn a_form_may_sign_where_it_is_sent() {
    let signed = SignedText::parse("POST{url}{body}{timestamp}").unwrap();
    assert_eq!(signed.to_string(), "POST{url}{body}{timestamp}");
    let timestamp = Some(Timestamp { header: "x-time".to_owned(), unit: TimeUnit::Milliseconds });
    let form = HmacForm { encoding: Encoding::Base64, timestamp, signed, ..HmacForm::new("x-signature") };
    let source = Source::hmac(form, [key("s")]).unwrap();
    let time = format!("{NOW}000");
    let signature = STANDARD.encode(key("s").tag(&[b"POSThttps://a.example/", BODY, time.as_bytes()]));
    let headers = [("x-signature", signature.as_str()), ("x-time", time.as_str())];
    assert!(verify_at(&source, "https://a.example/", &headers, BODY).is_ok());
    assert_eq!(verify_at(&source, "https://b.example/", &headers, BODY), Err(Refusal::NoMatch { secrets: 1 }));
    assert_eq!(verify(&source, &headers, BODY, NOW), Err(Refusal::UnknownUrl));
}

/// In hex, as most write it.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The example in Slack's documentation of signed requests.
#[test]
fn slacks_own_example_is_accepted_for_five_minutes() {
    let body = b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V\
        &channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=\
        &response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN\
        &trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c";
    let signature = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503";
    let headers = [("x-slack-signature", signature), ("x-slack-request-timestamp", "1531420618")];
    let slack = Source::slack([key("8f742231b10e8888abcd99yyyzzz85a5")]);
    let check = |source: &Source, now| verify(source, &headers, body, now);
    assert_eq!(check(&slack, 1_531_420_918).map(|verified| verified.signed_at), Ok(Some(1_531_420_618)));
    let allowed = Duration::from_secs(300);
    assert_eq!(check(&slack, 1_531_420_919), Err(Refusal::TooOld { age: Duration::from_secs(301), allowed }));
    assert_eq!(check(&slack, 1_531_420_317), Err(Refusal::TooNew { ahead: Duration::from_secs(301), allowed }));
    assert!(check(&slack.clone().with_tolerance(Duration::from_secs(3_600)), 1_531_424_000).is_ok());
    assert_eq!(check(&Source::slack([key("another")]), 1_531_420_618), Err(Refusal::NoMatch { secrets: 1 }));
    assert!(check(&Source::slack([key("another"), key("8f742231b10e8888abcd99yyyzzz85a5")]), 1_531_420_618).is_ok());
}

#[test]
fn a_request_is_known_by_the_header_that_its_sender_names_it_in() {
    let signature = format!("sha256={}", hex(&key("s").tag(&[BODY])));
    let headers = [("x-hub-signature-256", signature.as_str()), ("x-github-delivery", "72d3162e")];
    let verified = verify(&Source::github([key("s")]), &headers, BODY, NOW).unwrap();
    assert_eq!(verified, Verified { id: Some("72d3162e".to_owned()), signed_at: None });

    let signature = STANDARD.encode(key("s").tag(&[BODY]));
    let headers = [("x-shopify-hmac-sha256", signature.as_str()), ("x-shopify-webhook-id", "b54557e4")];
    let verified = verify(&Source::shopify([key("s")]), &headers, BODY, NOW).unwrap();
    assert_eq!(verified.id.as_deref(), Some("b54557e4"));
}

#[test]
fn stripes_form_is_accepted_as_our_own_deliveries_have_it() {
    let secret = Secret::from_bytes(&[7; 24]).unwrap();
    let header = stripe_header(&[SigningKey::new(&secret)], NOW, BODY);
    let stripe = Source::stripe([key(&secret.reveal())]);
    let check = |header: &str| verify(&stripe, &[("stripe-signature", header)], BODY, NOW + 2);
    assert_eq!(check(&header).map(|verified| verified.signed_at), Ok(Some(NOW)));
    let (time, signature) = header.split_once(',').unwrap();
    assert!(check(&format!("{time},v0=abc,v1=00,{signature}")).is_ok(), "what it does not know is passed over");
    let unreadable = |refused: Result<Verified, Refusal>| matches!(refused, Err(Refusal::Unreadable { .. }));
    for header in [time, signature, "", &format!("{time},{time},{signature}"), &format!("t=soon,{signature}")] {
        assert!(unreadable(check(header)), "{header:?}");
    }
    assert_eq!(check(&format!("{time},v1=0000")), Err(Refusal::NoMatch { secrets: 1 }));
}

#[test]
fn standard_webhooks_are_accepted_under_either_name() {
    let secret = Secret::from_bytes(&[7; 24]).unwrap();
    let signature = sign(&[SigningKey::new(&secret)], "msg_1", NOW, BODY);
    let (source, time) = (Source::standard([secret]), NOW.to_string());
    for prefix in ["webhook", "svix"] {
        let [id, timestamp, name] = ["id", "timestamp", "signature"].map(|name| format!("{prefix}-{name}"));
        let headers =
            [(id.as_str(), "msg_1"), (timestamp.as_str(), time.as_str()), (name.as_str(), signature.as_str())];
        let verified = verify(&source, &headers, BODY, NOW).unwrap();
        assert_eq!(verified, Verified { id: Some("msg_1".to_owned()), signed_at: Some(NOW) });
        assert_eq!(verify(&source, &headers, b"{}", NOW), Err(Refusal::NoMatch { secrets: 1 }));
        let allowed = Duration::from_secs(300);
        let late = verify(&source, &headers, BODY, NOW + 86_400);
        assert_eq!(late, Err(Refusal::TooOld { age: Duration::from_secs(86_400), allowed }));
    }
    assert!(matches!(verify(&source, &[], BODY, NOW), Err(Refusal::MissingHeader { .. })));
}

#[test]
fn a_form_can_be_described() {
    let form = HmacForm {
        prefix: "s=".to_owned(),
        encoding: Encoding::Base64,
        hash: Hash::Sha512,
        separator: Some(' '),
        timestamp: Some(Timestamp { header: "x-time".to_owned(), unit: TimeUnit::Milliseconds }),
        signed: SignedText::parse("{header:X-Id}|{timestamp}|{body}").unwrap(),
        id: Some("x-id".to_owned()),
        ..HmacForm::new("X-Signature")
    };
    assert_eq!(form.signed.to_string(), "{header:x-id}|{timestamp}|{body}");
    let time = (NOW * 1_000 + 999).to_string();
    let tag = key("s").for_hash(Hash::Sha512).tag(&[b"e1|", time.as_bytes(), b"|", BODY]);
    assert_eq!(tag.len(), 64);
    let signature = format!("s=AAAA nothing s={}", STANDARD.encode(tag));
    let source = Source::hmac(form.clone(), [key("s")]).unwrap();
    let headers = [("x-signature", signature.as_str()), ("x-time", time.as_str()), ("x-id", "e1")];
    let verified = verify(&source, &headers, BODY, NOW).unwrap();
    assert_eq!(verified, Verified { id: Some("e1".to_owned()), signed_at: Some(NOW) });
    let missing = |name: &str| Err(Refusal::MissingHeader { name: name.to_owned() });
    for without in ["x-signature", "x-time", "x-id"] {
        let rest: Vec<_> = headers.into_iter().filter(|(name, _)| *name != without).collect();
        assert_eq!(verify(&source, &rest, BODY, NOW), missing(without));
    }
    let untimed = HmacForm { timestamp: None, ..form };
    assert_eq!(Source::hmac(untimed, []).err(), Some(FormError::Timestamp));
    let unsigned = HmacForm { timestamp: HmacForm::slack().timestamp, ..HmacForm::new("x") };
    assert_eq!(Source::hmac(unsigned, []).err(), Some(FormError::Timestamp));
}

#[test]
fn what_is_signed_must_hold_the_body_once_and_nothing_unknown() {
    for (text, expected) in [
        ("{timestamp}", FormError::Body),
        ("{body}{body}", FormError::Body),
        ("", FormError::Body),
        ("{body", FormError::Open),
        ("{uri}{body}", FormError::Unknown("uri".to_owned())),
        ("{header:}{body}", FormError::Unknown("header:".to_owned())),
    ] {
        assert_eq!(SignedText::parse(text), Err(expected), "{text}");
    }
}

#[test]
fn a_token_is_known_whole_or_not_at_all() {
    let source = Source::token("X-Token", [key("old"), key("new")]);
    for (given, is_known) in [("old", true), ("new", true), ("ne", false), ("newer", false), ("", false)] {
        assert_eq!(verify(&source, &[("x-token", given)], BODY, NOW).is_ok(), is_known, "{given}");
    }
}

#[test]
fn a_body_that_was_cut_short_is_told_from_a_wrong_secret() {
    let signature = format!("sha256={}", hex(&key("s").tag(&[BODY])));
    let headers = [("x-hub-signature-256", signature.as_str()), ("content-length", "13")];
    let source = Source::github([key("s")]);
    assert!(verify(&source, &headers, BODY, NOW).is_ok());
    let refused = verify(&source, &headers, &BODY[..9], NOW).unwrap_err();
    assert_eq!(refused, Refusal::BodyChanged { announced: 13, received: 9 });
    assert!(refused.to_string().contains("13 bytes were announced, 9 received"), "{refused}");
}

#[test]
fn no_refusal_and_no_debug_shows_a_secret() {
    let source = Source::slack([key("canary-secret")]);
    assert!(!format!("{source:?}").contains("canary"));
    let headers = [("x-slack-signature", "v0=00"), ("x-slack-request-timestamp", "1700000000")];
    let refused = verify(&source, &headers, BODY, NOW).unwrap_err();
    assert!(!format!("{refused:?} {refused}").contains("canary"));
    assert_eq!(SourceKey::base64("canary!").err(), Some(crate::SecretError::NotBase64));
}

#[test]
fn what_usually_goes_wrong_is_found_out() {
    let signed = b"{\"a\": 1, \"b\": \"x, \\\"y: z\"}\n";
    let signature = format!("sha256={}", hex(&key("c2VjcmV0").tag(&[signed])));
    let headers = [("x-hub-signature-256", signature.as_str())];
    let explain = |secret: SourceKey, body: &[u8]| {
        let header = |name: &str| headers.iter().find(|(given, _)| *given == name).map(|(_, value)| *value);
        Source::github([secret]).explain(&Received::new(&header, body), NOW)
    };
    assert_eq!(explain(key("c2VjcmV0"), signed), [], "it is not refused");
    assert_eq!(explain(key("c2VjcmV0"), &signed[..signed.len() - 1]), [Cause::EndLost]);
    assert_eq!(explain(key("c2VjcmV0"), &[&signed[..], b"\r\n"].concat()), [], "two things at once are not tried");
    assert_eq!(explain(key("c2VjcmV0"), &[&signed[..signed.len() - 1], b"\r\n"].concat()), [Cause::LineBreaks]);
    assert_eq!(explain(key("c2VjcmV0"), &[b"\xef\xbb\xbf", &signed[..]].concat()), [Cause::ByteOrderMark]);
    assert_eq!(explain(key(" c2VjcmV0\n"), signed), [Cause::SecretSpaces]);
    assert_eq!(explain(key("another"), signed), [], "nobody knows");
    let of_decoded = format!("sha256={}", hex(&key("secret").tag(&[BODY])));
    let header = |name: &str| (name == "x-hub-signature-256").then_some(of_decoded.as_str());
    let causes = Source::github([key("whsec_c2VjcmV0")]).explain(&Received::new(&header, BODY), NOW);
    assert_eq!(causes, [Cause::SecretEncoded]);

    let compact = br#"{"a":1,"b":"x, \"y: z"}"#;
    let signature = format!("sha256={}", hex(&key("s").tag(&[compact])));
    let header = |name: &str| (name == "x-hub-signature-256").then_some(signature.as_str());
    let spaced: &[u8] = b"{ \"a\": 1,\n  \"b\": \"x, \\\"y: z\" }";
    let causes = Source::github([key("s")]).explain(&Received::new(&header, spaced), NOW);
    assert_eq!(causes, [Cause::JsonSpaces]);
}

#[test]
fn a_signature_that_only_comes_late_is_told_from_a_wrong_one() {
    let secret = Secret::from_bytes(&[7; 24]).unwrap();
    let header = stripe_header(&[SigningKey::new(&secret)], NOW, BODY);
    let find = |name: &str| (name == "stripe-signature").then_some(header.as_str());
    let stripe = Source::stripe([key(&secret.reveal())]);
    assert_eq!(stripe.explain(&Received::new(&find, BODY), NOW + 3_600), [Cause::Time]);
    assert_eq!(stripe.explain(&Received::new(&find, b"{}"), NOW + 3_600), []);
    let decoded = SourceKey::base64(secret.reveal().strip_prefix("whsec_").unwrap()).unwrap();
    assert_eq!(Source::stripe([decoded]).explain(&Received::new(&find, BODY), NOW), [Cause::SecretDecoded]);
}

proptest! {
    /// Whatever one bit of the body or of the signature is turned, nothing of it is believed.
    #[test]
    fn a_single_bit_makes_another_request_of_it(
        body in prop::collection::vec(any::<u8>(), 1..200),
        place in any::<prop::sample::Index>(),
        bit in 0..8u32,
    ) {
        let source = Source::github([key("s")]);
        let tag = key("s").tag(&[&body]);
        let told = |tag: &[u8], body: &[u8]| {
            let signature = format!("sha256={}", hex(tag));
            verify(&source, &[("x-hub-signature-256", &signature)], body, NOW).is_ok()
        };
        prop_assert!(told(&tag, &body));
        let mut changed = body.clone();
        changed[place.index(body.len())] ^= 1 << bit;
        prop_assert!(!told(&tag, &changed));
        let mut forged = tag.clone();
        forged[place.index(tag.len())] ^= 1 << bit;
        prop_assert!(!told(&forged, &body));
    }

    /// Nothing that a stranger sends makes it panic.
    #[test]
    fn any_header_is_judged(signature: String, time: String, body: Vec<u8>, now: i64) {
        for source in [Source::slack([key("s")]), Source::stripe([key("s")]), Source::shopify([key("s")])] {
            let headers = [
                ("x-slack-signature", signature.as_str()),
                ("x-slack-request-timestamp", time.as_str()),
                ("stripe-signature", signature.as_str()),
                ("x-shopify-hmac-sha256", signature.as_str()),
            ];
            prop_assert!(verify(&source, &headers, &body, now).is_err());
        }
    }
}
