//! For servers that are built of `tower` services.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::{Layer, Service};

use crate::{Door, Store, body};

type Pending<R, E> = Pin<Box<dyn Future<Output = Result<R, E>> + Send>>;

/// A service that takes requests in and answers them.
pub struct TakeService<S> {
    door: Door<S>,
}

impl<S: Store> Door<S> {
    /// A service that takes requests in and answers them.
    pub fn service(&self) -> TakeService<S> {
        TakeService { door: self.clone() }
    }

    /// A layer that lets verified requests through, with their bytes and an [`Event`](crate::Event) among their
    /// extensions, and answers the others. It records nothing: for services that call `process` themselves.
    pub fn verify_layer(&self) -> VerifyLayer<S> {
        VerifyLayer { door: self.clone() }
    }
}

impl<S> Clone for TakeService<S> {
    fn clone(&self) -> Self {
        Self { door: self.door.clone() }
    }
}

impl<S, B> Service<Request<B>> for TakeService<S>
where
    S: Store,
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pending<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let door = self.door.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let outcome = match body::collect(body, door.body_max()).await {
                Ok(body) => door.take(&head.headers, body).await,
                Err(outcome) => {
                    door.note(&outcome);
                    outcome
                }
            };
            Ok(outcome.answer().into_response())
        })
    }
}

pub struct VerifyLayer<S> {
    door: Door<S>,
}

impl<S> Clone for VerifyLayer<S> {
    fn clone(&self) -> Self {
        Self { door: self.door.clone() }
    }
}

impl<S, I> Layer<I> for VerifyLayer<S> {
    type Service = VerifyService<S, I>;

    fn layer(&self, inner: I) -> Self::Service {
        VerifyService { door: self.door.clone(), inner }
    }
}

/// What [`VerifyLayer`] makes.
pub struct VerifyService<S, I> {
    door: Door<S>,
    inner: I,
}

impl<S, I: Clone> Clone for VerifyService<S, I> {
    fn clone(&self) -> Self {
        Self { door: self.door.clone(), inner: self.inner.clone() }
    }
}

impl<S, I, B, R> Service<Request<B>> for VerifyService<S, I>
where
    S: Store,
    I: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    I::Future: Send,
    B: http_body::Body + From<Bytes> + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    R: From<String> + Send,
{
    type Response = Response<R>;
    type Error = I::Error;
    type Future = Pending<Self::Response, I::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), I::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let door = self.door.clone();
        // The one that has said it is ready is the one to be called.
        let rested = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, rested);
        Box::pin(async move {
            let (mut head, body) = request.into_parts();
            let verified = match body::collect(body, door.body_max()).await {
                Ok(body) => door.verify(&head.headers, body),
                Err(outcome) => {
                    door.note(&outcome);
                    Err(outcome)
                }
            };
            match verified {
                Ok(event) => {
                    let body = event.body.clone();
                    head.extensions.insert(event);
                    inner.call(Request::from_parts(head, body.into())).await
                }
                Err(outcome) => Ok(outcome.answer().into_response()),
            }
        })
    }
}
