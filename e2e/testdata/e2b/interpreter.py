"""The calls of docs/e2b.md that PyPI's e2b-code-interpreter makes."""
from e2b_code_interpreter import Sandbox

box = Sandbox.create(timeout=300)
try:
    box.run_code("x = 41", timeout=120)
    e = box.run_code("print('out'); x + 1")
    assert (e.text, "".join(e.logs.stdout), e.execution_count) == ("42", "out\n", 2), e
    assert box.run_code("1/0").error.name == "ZeroDivisionError"
    chart = box.run_code("import matplotlib.pyplot as plt; plt.bar(['a'], [1]); plt.show()").results[0]
    assert chart.png and chart.chart.type == "bar", chart
    context = box.create_code_context(language="python")
    assert box.run_code("x", context=context).error.name == "NameError"
    assert context.id in [c.id for c in box.list_code_contexts()]
    box.restart_code_context(context)
    box.remove_code_context(context)
    assert box.run_code("const y = 6; y * 7", language="js").text == "42"
finally:
    assert box.kill()
