//! The OpenAPI document: made from the routes, completed with what holds for all of them (who may call, how errors look).

use std::collections::{BTreeSet, HashMap};
use std::sync::OnceLock;

use axum::http::Method;
use serde_json::{Map, Value, json};
use utoipa::OpenApi;

use crate::access::{Access, access_of};
use crate::errors::{ErrorAnswer, ErrorBody};
use crate::{job_schema, router};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Belfry",
        version = "1",
        description = "A distributed cron. Every refusal has the form of ErrorAnswer; every list is paged by `cursor`."
    ),
    components(schemas(ErrorAnswer, ErrorBody))
)]
struct Base;

/// Made once.
pub fn document() -> &'static Value {
    static DOCUMENT: OnceLock<Value> = OnceLock::new();
    DOCUMENT.get_or_init(make)
}

fn make() -> Value {
    let mut api = Base::openapi();
    let (_, routes) = router::routes().split_for_parts();
    let info = api.info.clone();
    api.merge(routes);
    api.info = info;
    let mut document = serde_json::to_value(api).expect("an OpenAPI document is JSON");
    document["components"]["schemas"][job_schema::NAME] = job_schema::schema();
    document["components"]["schemas"][job_schema::PATCH_NAME] = job_schema::patch_schema();
    document["components"]["securitySchemes"] = json!({
        "token": { "type": "http", "scheme": "bearer", "description": "A token of /api/v1/tokens, `bft_…`" },
        "session": { "type": "apiKey", "in": "cookie", "name": crate::auth::SESSION_COOKIE, "description": "Set by /api/v1/login; changes also need `X-Belfry: 1`" },
    });
    each_operation(&mut document, complete);
    document
}

fn each_operation(document: &mut Value, mut visit: impl FnMut(&Method, &str, &mut Map<String, Value>)) {
    let Some(paths) = document["paths"].as_object_mut() else { return };
    for (path, item) in paths {
        for (word, operation) in item.as_object_mut().into_iter().flatten() {
            if let (Ok(method), Some(operation)) =
                (Method::from_bytes(word.to_uppercase().as_bytes()), operation.as_object_mut())
            {
                visit(&method, path, operation);
            }
        }
    }
}

fn complete(method: &Method, path: &str, operation: &mut Map<String, Value>) {
    let access = access_of(method, path);
    let needs = access.map_or("a row in the access table; until then nobody may call it".to_owned(), Access::in_words);
    operation.insert("x-belfry-needs".to_owned(), needs.into());
    let security = if access == Some(Access::Open) { json!([]) } else { json!([{ "token": [] }, { "session": [] }]) };
    operation.insert("security".to_owned(), security);
    let refusal = json!({
        "description": "The request was refused; the body says why",
        "content": { "application/json": { "schema": { "$ref": "#/components/schemas/ErrorAnswer" } } },
    });
    let responses = operation.entry("responses").or_insert_with(|| json!({}));
    for (status, response) in responses.as_object_mut().into_iter().flatten() {
        // OpenAPI 3.1 wants one for each.
        if response["description"].as_str().is_none_or(str::is_empty) {
            response["description"] = if status.starts_with('2') { "Done" } else { "Refused" }.into();
        }
    }
    responses["default"] = refusal;
    for name in path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')) {
        let parameters = operation.entry("parameters").or_insert_with(|| json!([]));
        if let Some(parameters) = parameters.as_array_mut()
            && !parameters.iter().any(|known| known["in"] == "path" && known["name"] == name)
        {
            parameters.push(json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }));
        }
    }
}

/// Which query parameters each operation takes.
pub(crate) fn query_names(document: &Value) -> HashMap<(Method, String), BTreeSet<String>> {
    let mut names = HashMap::new();
    each_operation(&mut document.clone(), |method, path, operation| {
        let parameters = operation.get("parameters").and_then(Value::as_array).into_iter().flatten();
        let in_query = parameters.filter(|parameter| parameter["in"] == "query");
        let of_operation = in_query.filter_map(|parameter| parameter["name"].as_str().map(str::to_owned)).collect();
        names.insert((method.clone(), path.to_owned()), of_operation);
    });
    names
}
