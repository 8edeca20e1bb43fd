from trainyard_protocol.job.config.placeholders import in_address, in_image


def test_placeholders_of_tutorials_are_found_and_real_names_are_not() -> None:
    images = {
        "gcr.io/{path/to/image}:{tag}": ["{path/to/image}", "{tag}"],
        "gcr.io/<PROJECT>/mnist": ["<PROJECT>"],
        "gcr.io/[PROJECT_ID]/mnist:latest": ["[PROJECT_ID]"],
        "gcr.io/PROJECT_ID/mnist": ["PROJECT_ID"],
        "gcr.io/$PROJECT_ID/mnist:$TAG": ["$PROJECT_ID", "$TAG"],
        "gcr.io/${PROJECT}/mnist": ["${PROJECT}"],
        "gcr.io/your-project/image": ["your-project"],
        "gcr.io/YOUR_PROJECT/image": ["YOUR_PROJECT"],
        "gcr.io/my-project/mnist:V1_BETA": [],
        "localhost:5000/team/a@sha256:00ff": [],
        "registry.example:5000/a/b": [],
        "trainyard/digits:0f3a": [],
    }
    assert {uri: in_image(uri) for uri in images} == images
    addresses = {
        "gs://YOUR_BUCKET/out": ["YOUR_BUCKET"],
        "gs://BUCKET_NAME/out": ["BUCKET_NAME"],
        "gs://{bucket}/out": ["{bucket}"],
        "gs://bucket/RUN_1/OUT": [],
        "/data/RUN_1": [],
        "staging://0f/trainer-0.0.0.tar.gz": [],
    }
    assert {address: in_address(address) for address in addresses} == addresses
