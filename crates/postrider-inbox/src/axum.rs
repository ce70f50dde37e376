//! Extractors for `axum`. The router's state is a [`Door`], or gives one by `FromRef`.
//!
//! Each takes the whole request: it must be the handler's last argument, and nothing in front of it may change the body.

use axum::{
    body::Body,
    extract::{FromRef, FromRequest, Request},
    response::{IntoResponse, Response},
};

use crate::{Answer, Door, Event, Outcome, Store, body};

/// A request that was verified, recorded and queued, or that was recorded before: `outcome` is [`Outcome::Accepted`] or
/// [`Outcome::Duplicate`]. A handler only has to return it. All others are answered in its place.
///
/// ```
/// use axum::{Router, routing::post};
/// use postrider_inbox::{Door, SqliteStore, axum::Taken};
///
/// fn app(door: Door<SqliteStore>) -> Router {
///     Router::new().route("/webhooks", post(async |taken: Taken<SqliteStore>| taken)).with_state(door)
/// }
/// ```
pub struct Taken<S> {
    pub outcome: Outcome,
    store: std::marker::PhantomData<fn() -> S>,
}

/// A request whose signature holds, of which nothing was recorded: for handlers that call `process` in a transaction of their
/// own, and answer 2xx after it has committed. Others are answered in its place.
pub struct Genuine<S> {
    pub event: Event,
    pub door: Door<S>,
}

impl<S, T> FromRequest<T> for Taken<S>
where
    S: Store,
    T: Send + Sync,
    Door<S>: FromRef<T>,
{
    type Rejection = Answer;

    async fn from_request(request: Request, state: &T) -> Result<Self, Self::Rejection> {
        let door = Door::<S>::from_ref(state);
        let (head, body) = request.into_parts();
        let outcome = match body::collect(body, door.body_max()).await {
            Ok(body) => door.take(&head.headers, body).await,
            Err(outcome) => {
                door.note(&outcome);
                outcome
            }
        };
        match outcome {
            Outcome::Accepted { .. } | Outcome::Duplicate => Ok(Self { outcome, store: std::marker::PhantomData }),
            Outcome::Refused(_) | Outcome::TooLarge { .. } | Outcome::Full { .. } | Outcome::StoreOut => {
                Err(outcome.answer())
            }
        }
    }
}

impl<S, T> FromRequest<T> for Genuine<S>
where
    S: Store,
    T: Send + Sync,
    Door<S>: FromRef<T>,
{
    type Rejection = Answer;

    async fn from_request(request: Request, state: &T) -> Result<Self, Self::Rejection> {
        let door = Door::<S>::from_ref(state);
        let (head, body) = request.into_parts();
        let body = body::collect(body, door.body_max()).await.inspect_err(|outcome| door.note(outcome));
        let event = body.and_then(|body| door.verify(&head.headers, body)).map_err(|outcome| outcome.answer())?;
        Ok(Self { event, door })
    }
}

impl<S> IntoResponse for Taken<S> {
    fn into_response(self) -> Response {
        self.outcome.answer().into_response()
    }
}

impl IntoResponse for Outcome {
    fn into_response(self) -> Response {
        self.answer().into_response()
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        Self::into_response::<Body>(self)
    }
}
