"""What scripts that tests run as ranks begin with."""

FAILS = """
def fails(text, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except Exception as error:
        assert text in str(error), str(error)
    else:
        raise AssertionError(f"no error that says {text}")
"""
