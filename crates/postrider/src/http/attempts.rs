//! Placeholder: written elsewhere.

use super::Api;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
}
